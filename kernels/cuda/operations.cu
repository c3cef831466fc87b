// The operations over a ring: y = act(x·scale + shift), y = x + residual + bias, and statistics of y.

extern __shared__ __align__(128) unsigned char shared_memory[];

constexpr int CENTRE = 8;  // pixels whose mean the sums are taken about
constexpr int FLUSH = 16;  // tiles whose sums are taken in the small accumulators before they join the large ones

__device__ __forceinline__ float scalar(const void* values, i64 i, bool wide) {
#if ELEMENT == 0
  return static_cast<const float*>(values)[i];
#else
  if (wide) return static_cast<const float*>(values)[i];
  const u32 bits = static_cast<const unsigned short*>(values)[i];
#if ELEMENT == 1
  return __uint_as_float(bits << 16);
#else
  float x;
  asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low;}" : "=f"(x) : "r"(bits));
  return x;
#endif
#endif
}

struct Output {
  Map map;
  i64 group_bytes;
  char* at;

  __device__ Output(const Map& map, const Place& place) : map(map), group_bytes(place.group * VECTOR), at(nullptr) {}
  __device__ void tile(const Tile& tile, i64 sample) { at = tile.in(map, sample) + group_bytes; }
  __device__ void put(int pixel, const uint4& raw) const { *reinterpret_cast<uint4*>(at + pixel * map.pixel) = raw; }
};

template <bool SILU>
struct Norm {
  Output out;
  float scale[V], shift[V];

  __device__ Norm(const Map& map, const Place& place, const Work& work, const float* affine) : out(map, place) {
    const i64 channels = i64(work.groups) * V, samples = gridDim.x / work.blocks;
    const float* from = affine + work.sample() * channels + place.group * V;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      scale[v] = from[v];
      shift[v] = from[samples * channels + v];
    }
  }

  __device__ void tile(const Tile& tile, i64 sample) { out.tile(tile, sample); }

  __device__ void vector(const uint4 (&raw)[1], int pixel) const {
    float x[V];
    unpack(raw[0], x);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      x[v] = fmaf(x[v], scale[v], shift[v]);
      if (SILU) x[v] = silu(x[v]);
    }
    out.put(pixel, pack(x));
  }
};

// Sums of y and y² about a mean of few pixels, so that a large mean costs no digits.
struct Moments {
  float centre[V], near_sum[V], near_square[V], sum[V], square[V];
  i64 count;
  int tiles;

  __device__ Moments() : count(0), tiles(0) {
#pragma unroll
    for (int v = 0; v < V; ++v) near_sum[v] = near_square[v] = sum[v] = square[v] = 0.0f;
  }

  __device__ void flush() {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      sum[v] += near_sum[v];
      square[v] += near_square[v];
      near_sum[v] = near_square[v] = 0.0f;
    }
  }

  __device__ void tile(const Tile& tile) {
    count += tile.count;
    if (++tiles % FLUSH == 0) flush();
  }

  __device__ void add(const float (&y)[V]) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const float d = y[v] - centre[v];
      near_sum[v] += d;
      near_square[v] = fmaf(d, d, near_square[v]);
    }
  }

  // (count, mean, sum of squared deviations) of the block to parts [samples, blocks, 3, channels]
  __device__ void finish(const Work& work, const Place& place, int threads, unsigned char* memory, double* parts) {
    const int channels = work.groups * V;
    float* sums = reinterpret_cast<float*>(memory);  // [lanes, channels]
    float* squares = sums + work.lanes * channels;   // [lanes, channels]
    float* centres = squares + work.lanes * channels;
    flush();
    if (place.lane != NOWHERE) {
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const int c = place.group * V + v;
        sums[place.lane * channels + c] = sum[v];
        squares[place.lane * channels + c] = square[v];
        if (place.lane == 0) centres[c] = centre[v];
      }
    }
    __syncthreads();
    if (int(threadIdx.x) >= threads) return;  // the producer has counted nothing
    double* part = parts + i64(blockIdx.x) * 3 * channels;
    for (int c = threadIdx.x; c < channels; c += threads) {
      double s = 0.0, q = 0.0;
      for (int lane = 0; lane < work.lanes; ++lane) {
        s += sums[lane * channels + c];
        q += squares[lane * channels + c];
      }
      const double n = double(count), m2 = q - s * s / n;
      part[c] = n;
      part[channels + c] = centres[c] + s / n;
      part[2 * channels + c] = m2 < 0.0 ? 0.0 : m2;  // NaN stays
    }
  }
};

// y = x + residual + bias of MAPS maps (x alone, or x and residual); WRITE: y is stored; STATS: and its moments taken
template <int MAPS, bool WRITE, bool STATS>
struct Add {
  Output out;
  Moments moments;
  float bias[V];

  __device__ Add(const Map& map, const Place& place, const void* given, bool wide) : out(map, place) {
#pragma unroll
    for (int v = 0; v < V; ++v) bias[v] = given == nullptr ? 0.0f : scalar(given, place.group * V + v, wide);
  }

  __device__ uint4 result(const uint4 (&raw)[MAPS], float (&y)[V]) const {
    unpack(raw[0], y);
    if (!WRITE) return raw[0];
    if (MAPS == 2) {
      float r[V];
      unpack(raw[MAPS - 1], r);
#pragma unroll
      for (int v = 0; v < V; ++v) y[v] += r[v];
    }
#pragma unroll
    for (int v = 0; v < V; ++v) y[v] += bias[v];
    const uint4 packed = pack(y);
    unpack(packed, y);  // the statistics are those of the rounded values
    return packed;
  }

  // the centre: the mean of y over the first pixels of the block's first tile (its last one again where it has fewer),
  // read before anything is written, and all at once
  __device__ void prepare(const Work& work, const Place& place, const Map (&from)[MAPS]) {
    const Tile first(work, work.first());
    uint4 raw[CENTRE][MAPS];
#pragma unroll
    for (int m = 0; m < MAPS; ++m) {
      const char* at = first.in(from[m], work.sample()) + place.group * VECTOR;
#pragma unroll
      for (int p = 0; p < CENTRE; ++p)
        raw[p][m] = *reinterpret_cast<const uint4*>(at + (p < first.count ? p : first.count - 1) * from[m].pixel);
    }
#pragma unroll
    for (int v = 0; v < V; ++v) moments.centre[v] = 0.0f;
#pragma unroll
    for (int p = 0; p < CENTRE; ++p) {
      float y[V];
      result(raw[p], y);
#pragma unroll
      for (int v = 0; v < V; ++v) moments.centre[v] += y[v] / CENTRE;
    }
  }

  __device__ void tile(const Tile& tile, i64 sample) {
    if (WRITE) out.tile(tile, sample);
    if (STATS) moments.tile(tile);
  }

  __device__ void vector(const uint4 (&raw)[MAPS], int pixel) {
    float y[V];
    const uint4 packed = result(raw, y);
    if (WRITE) out.put(pixel, packed);
    if (STATS) moments.add(y);
  }
};

#define PARAMETERS                                                                                                  \
  char *x, char *residual, char *y, const void *factors, i64 wide, double *parts, i64 blocks, i64 outer,            \
      i64 pixels, i64 per_run, i64 tile, i64 groups, i64 lanes, i64 x_sample, i64 x_outer, i64 x_pixel,             \
      i64 residual_sample, i64 residual_outer, i64 residual_pixel, i64 y_sample, i64 y_outer, i64 y_pixel
#define ARGUMENTS                                                                                                   \
  x, residual, y, factors, wide, parts, blocks, outer, pixels, per_run, tile, groups, lanes, x_sample, x_outer,     \
      x_pixel, residual_sample, residual_outer, residual_pixel, y_sample, y_outer, y_pixel

#define SETUP(backwards)                                                                              \
  const Work work = {blocks, outer, pixels, per_run, int(tile), int(groups), int(lanes), backwards};  \
  const Place place(work);                                                                            \
  const Ring ring(shared_memory);                                                                     \
  const Map in = {x, x_sample, x_outer, x_pixel};                                                     \
  const Map to = {y, y_sample, y_outer, y_pixel}

template <bool SILU>
__device__ __forceinline__ void norm(PARAMETERS) {
  SETUP(false);
  const Map from[1] = {in};
  Norm<SILU> body(to, place, work, static_cast<const float*>(factors));
  ring.run(work, place, from, body);
}

// Backwards: what the convolution before wrote last is still in the cache, and so will be what the next normalisation
// reads first.
template <int MAPS, bool WRITE, bool STATS>
__device__ __forceinline__ void add(PARAMETERS) {
  SETUP(true);
  Map from[MAPS];
  from[0] = in;
  if (MAPS == 2) from[MAPS - 1] = {residual, residual_sample, residual_outer, residual_pixel};
  Add<MAPS, WRITE, STATS> body(to, place, factors, wide);
  if (STATS) body.prepare(work, place, from);
  ring.run(work, place, from, body);
  if (STATS) body.moments.finish(work, place, Ring::consumer_threads(), ring.stages, parts);
}

// 544 threads: 2048 channels of float, and the producer
#define KERNEL(name, call) \
  extern "C" __global__ void __launch_bounds__(544, 1) name(PARAMETERS) { call(ARGUMENTS); }

KERNEL(norm_plain, norm<false>)
KERNEL(norm_silu, norm<true>)
KERNEL(stats, (add<1, false, true>))
KERNEL(add_bias, (add<1, true, false>))
KERNEL(add_bias_stats, (add<1, true, true>))
KERNEL(add_residual, (add<2, true, false>))
KERNEL(add_residual_stats, (add<2, true, true>))
