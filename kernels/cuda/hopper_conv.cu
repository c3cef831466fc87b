// A 3x3 convolution of pictures, or one of clips with 3x3 taps in space, with channels innermost on Hopper's tensor
// cores: y = conv(x) + residual + bias, rounded once, and the statistics of y.
//
// Set from outside: ELEMENT (1 bfloat16, 2 half), RESIDUAL, STATS, ENLARGE, DOWN (0 or 1).
//
// ENLARGE: of a picture enlarged twice, from its own pixels and the weight's 4x4 sums of taps. A pixel of the small
// picture becomes two rows of two pixels, and each of these four sees 2x2 pixels by taps of its own. To what follows, y
// is a clip: its frames are the upper and the lower rows, and its channels those of a left and of a right pixel.
//
// DOWN: in steps of two. A pixel of y sees pixels of a square of 2x2 and of its neighbours: each of a square's four
// places is a picture of its own here, of which a pixel of y sees 2x2, 2x1, 1x2 pixels or one. x is a clip: its frames
// are the upper and the lower rows, and its channels those of a left and of a right pixel.
//
// A block computes tiles of 16x16 pixels and 128 channels. Of 64 channels of x it loads the pixels that a tile sees,
// 18x18, once, and multiplies them by the nine taps of the weight: a tap's pixels are the same lines of shared memory
// from another line on. Each of two warpgroups takes 8 rows of the tile; their ends need not coincide, so that one
// multiplies while the other writes. The last warpgroup, of which one thread works, is the producer.
//
// Stages of pixels: those of a tile's channels, 64 after 64 of every frame that it sees. Stages of taps: the weight's
// 128x64 for one tap. Each consumer's warp has a place for its rows of the tile, 64 channels twice: the residual comes
// there, y takes its place and goes out from it.

constexpr int TILE = 16, HALO = TILE + 2, LINE = 128, DEEP = 64, WIDE = 128;
constexpr int ACROSS = ENLARGE || DOWN ? 2 : 3, TAPS = ACROSS * ACROSS, PLACES = DOWN ? 4 : 1;
constexpr int CONSUMERS = 256, WARPS = CONSUMERS / 32, ROWS = TILE / WARPS;
constexpr int PITCH = HALO * LINE, SEEN_BYTES = HALO * PITCH, TAP_BYTES = WIDE * LINE, ROWS_BYTES = ROWS * TILE * LINE;
constexpr int SEEN_STAGES = 2, TAP_STAGES = 5, SEEN_STAGE = (SEEN_BYTES + 1023) / 1024 * 1024;
constexpr int SEEN_AT = 0, TAPS_AT = SEEN_AT + SEEN_STAGES * SEEN_STAGE, ROWS_AT = TAPS_AT + TAP_STAGES * TAP_BYTES;
constexpr int BARRIERS_AT = ROWS_AT + WARPS * 2 * ROWS_BYTES;
constexpr int TAP_BARRIERS = BARRIERS_AT + SEEN_STAGES * 16, ROWS_BARRIERS = TAP_BARRIERS + TAP_STAGES * 16;
constexpr int BIAS_AT = SEEN_AT + SEEN_BYTES, NEAR_AT = BIAS_AT + SEEN_STAGE;  // after the pixels of a stage
static_assert(ROWS_BARRIERS + WARPS * 16 <= 227 * 1024, "more shared memory than a block can have");
static_assert(SEEN_STAGES > 1 && SEEN_STAGE - SEEN_BYTES >= WIDE * 4, "no room for the vectors");

extern __shared__ __align__(1024) unsigned char shared_memory[];

// Of y, its channels as in the weight; blocks of WIDE channels, of DEEP channels of x; taps in time; zeros in front.
struct Work {
  const void* bias;  // in x's type, or in float
  double* parts;
  int samples, frames, height, width, channels, wide, deep, times, left, top, front, float_bias;

  __device__ float bias_of(int channel) const {
    if (!bias) return 0.f;
    if (float_bias) return static_cast<const float*>(bias)[channel];
    return unpack(u32(static_cast<const unsigned short*>(bias)[channel])).x;
  }
};

struct Tile {
  int sample, frame, row, column;

  __device__ Tile(const Work& work, int i) {
    const int across = (work.width + TILE - 1) / TILE, each = across * ((work.height + TILE - 1) / TILE);
    frame = ENLARGE ? i % 2 : i / each % work.frames;  // two that see the same pixels come together
    sample = i / each / work.frames;
    i = ENLARGE ? i / 2 % each : i % each;
    row = i / across * TILE;
    column = i % across * TILE;
  }

  __device__ int pixels(const Work& work) const {
    return min(TILE, work.height - row) * min(TILE, work.width - column);
  }
};

// Of a block, the last first: what an operation before wrote last is still in the cache. wide: its channels of y;
// channel: the first of these in the weight; right: are they a right pixel's?
struct Tiles {
  int wide, slot, slots, count, channel;
  bool right;

  __device__ explicit Tiles(const Work& work)
      : wide(blockIdx.x % work.wide), slot(blockIdx.x / work.wide), slots(gridDim.x / work.wide) {
    right = wide * WIDE >= work.channels;
    channel = wide * WIDE - right * work.channels;
    count = work.samples * work.frames * ((work.width + TILE - 1) / TILE) * ((work.height + TILE - 1) / TILE);
  }
  __device__ int first() const { return count - 1 - slot; }
};

struct Stages {  // a ring, as one side of it sees it
  u32 at, full, empty, bytes, count, stage, phase;

  __device__ Stages(u32 at, u32 barriers, u32 bytes, u32 count, u32 phase)
      : at(at), full(barriers), empty(barriers + 8 * count), bytes(bytes), count(count), stage(0), phase(phase) {}

  __device__ u32 here() const { return at + stage * bytes; }
  __device__ u32 is_full() const { return full + 8 * stage; }
  __device__ u32 is_empty() const { return empty + 8 * stage; }
  __device__ u32 before_is_empty() const { return empty + 8 * (stage == 0 ? count - 1 : stage - 1); }
  __device__ void next() {
    if (++stage == count) stage = 0, phase ^= 1;
  }
};

__device__ __forceinline__ void all_consumers() { asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory"); }

// DOWN: does the tap fall beyond the nine?
__device__ constexpr bool beyond(int place, int tap) {
  return DOWN && ((place / 2 && tap / 2) || (place % 2 && tap % 2));
}

__device__ void produce(const Tensor& x, const Tensor& weight, const Work& work, Stages seen, Stages taps) {
  const Tiles tiles(work);
  for (int i = tiles.first(); i >= 0; i -= tiles.slots) {
    const Tile tile(work, i);
    for (int place = 0; place < PLACES; ++place)
      for (int k = 0; k < work.times * work.deep; ++k) {
        const int time = k / work.deep, channel = k % work.deep * DEEP;
        const int from = ENLARGE ? 0 : DOWN ? place / 2 : tile.frame + time - work.front;
        barrier_wait(seen.is_empty(), seen.phase);
        barrier_arrive_expecting(seen.is_full(), SEEN_BYTES);
        load_box(seen.here(), x, seen.is_full(), channel + place % 2 * work.deep * DEEP, tile.column - work.left,
                 tile.row - work.top, from, tile.sample);
        seen.next();
        for (int tap = 0; tap < TAPS; ++tap) {
          if (beyond(place, tap)) continue;
          barrier_wait(taps.is_empty(), taps.phase);
          barrier_arrive_expecting(taps.is_full(), TAP_BYTES);
          const int which = ENLARGE ? (3 - tile.frame - tap / 2 * 2) * 4 + 3 - tiles.right - tap % 2 * 2
                            : DOWN  ? (tap / 2 * 2 + place / 2) * 3 + tap % 2 * 2 + place % 2
                                    : time * TAPS + tap;
          load_box(taps.here(), weight, taps.is_full(), channel, which, tiles.channel);
          taps.next();
        }
      }
  }
}

// The sums of what consumers have seen of a sample, about a value near each channel's mean.
struct Sums {
  float mine[8];
  int pixels;

  __device__ Sums() { clear(); }

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < 8; ++i) mine[i] = 0.f;
    pixels = 0;
  }

  // part: sums of 16 channels' deviations, 8j + lane%4·2 + {0, 1} at 2j + {0, 1}, then of their squares. Lanes that have
  // the same channels share them out: a lane's 16 says squares, its 8 and 4 say which pair of j.
  __device__ void add(float (&part)[32], int half) {
    share<16>(part);
    share<8>(part);
    share<4>(part);
#pragma unroll
    for (int i = 0; i < 4; ++i) mine[half * 4 + i] += part[i];
  }

  // Lanes that differ in this bit add what they have, and each keeps one half of it.
  template <int BIT>
  static __device__ void share(float (&part)[32]) {
    const bool upper = threadIdx.x & BIT;
#pragma unroll
    for (int i = 0; i < BIT; ++i) {
      const float other = __shfl_xor_sync(~0u, upper ? part[i] : part[BIT + i], BIT);
      part[i] = (upper ? part[BIT + i] : part[i]) + other;
    }
  }

  // The block's statistics of the sample, through shared memory that all consumers are done with.
  __device__ void write(const Work& work, const Tiles& tiles, int sample, float* all, const float* near) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int channel = i / 4 * DEEP + (lane / 4 % 4 * 2 + i / 2 % 2) * 8 + lane % 4 * 2 + i % 2;
      all[(warp * 2 + lane / 16) * WIDE + channel] = mine[i];
    }
    all_consumers();
    if (threadIdx.x < WIDE) {
      double sum = 0., squares = 0.;
      for (int k = 0; k < WARPS; ++k) {
        sum += all[k * 2 * WIDE + threadIdx.x];
        squares += all[(k * 2 + 1) * WIDE + threadIdx.x];
      }
      double* const to = at(work, tiles, sample);
      to[0] = pixels;
      to[work.channels] = near[threadIdx.x] + sum / pixels;
      to[2 * work.channels] = squares - sum * sum / pixels;
    }
    all_consumers();
  }

  // of this thread's channel, in parts_nb3c; those of right pixels are blocks of their own
  static __device__ double* at(const Work& work, const Tiles& tiles, int sample) {
    const i64 block = (i64(sample) * tiles.slots + tiles.slot) * (1 + ENLARGE) + tiles.right;
    return work.parts + block * 3 * work.channels + tiles.channel + threadIdx.x;
  }

  // A block may see no pixel of a sample.
  static __device__ void nothing(const Work& work, const Tiles& tiles) {
    for (int sample = 0; sample < work.samples; ++sample) {
      double* const to = at(work, tiles, sample);
      to[0] = to[work.channels] = to[2 * work.channels] = 0.;
    }
  }
};

// The products of a warpgroup for its 8 rows of a tile, of whose pixels the first tap sees the one at ``begin``: d[m]
// has columns 8m to 8m + 7.
__device__ __forceinline__ void multiply_tile(float (&d)[2][64], const Work& work, int begin, Stages& seen,
                                              Stages& taps) {
  const int group = threadIdx.x / 128;
  const bool one_of_group = threadIdx.x % 128 == 0, one_of_warp = threadIdx.x % 32 == 0;
  bool add = false;
#pragma unroll
  for (int place = 0; place < PLACES; ++place)
    for (int k = 0; k < work.times * work.deep; ++k) {
      barrier_wait(seen.is_full(), seen.phase);
#pragma unroll
      for (int tap = 0; tap < TAPS; ++tap) {
        if (beyond(place, tap)) continue;
        barrier_wait(taps.is_full(), taps.phase);
        const u32 pixels = seen.here() + begin + (group * 8 + tap / ACROSS) * PITCH + tap % ACROSS * LINE;
        products_begin();
#pragma unroll
        for (int inner = 0; inner < LINE; inner += 32) {
          const u64 b = matrix(taps.here() + inner, 8 * LINE);
          multiply(d[0], matrix(pixels + inner, PITCH), b, add);
          multiply(d[1], matrix(pixels + 8 * LINE + inner, PITCH), b, add);
          add = true;
        }
        products_end();
        products_done<1>();  // those of the tap before
        if (place + k + tap > 0 && one_of_group) barrier_arrive(taps.before_is_empty());
        if (tap == 0 && place + k > 0 && one_of_warp) barrier_arrive(seen.before_is_empty());
        taps.next();
      }
      seen.next();
    }
  products_done<0>();
  settled(d[0]);
  settled(d[1]);
  if (one_of_group) barrier_arrive(taps.before_is_empty());
  if (one_of_warp) barrier_arrive(seen.before_is_empty());
}

__device__ void consume(const Tensor& residual, const Tensor& y, const Work& work, Stages seen, Stages taps,
                        u32 barriers) {
  const Tiles tiles(work);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = tiles.wide * WIDE;
  unsigned char* const place = shared_memory + ROWS_AT + warp * 2 * ROWS_BYTES;
  const float* const bias = reinterpret_cast<const float*>(shared_memory + BIAS_AT);
  float* const near = reinterpret_cast<float*>(shared_memory + NEAR_AT);
  float d[2][64];
  Sums sums;
  u32 phase = 0;
  for (int i = tiles.first(); i >= 0; i -= tiles.slots, phase ^= 1) {
    const Tile tile(work, i);
    const int top = tile.row + warp * ROWS;
#if RESIDUAL
    if (lane == 0) {
      stores_read();
      for (int half = 0; half < 2; ++half) {
        const u32 full = barriers + (warp * 2 + half) * 8;
        barrier_arrive_expecting(full, ROWS_BYTES);
        load_box(shared_address(place + half * ROWS_BYTES), residual, full, first + half * DEEP, tile.column, top,
                 tile.frame, tile.sample);
      }
    }
#endif
    multiply_tile(d, work, ENLARGE ? tile.frame * PITCH + tiles.right * LINE : 0, seen, taps);
#if !RESIDUAL
    if (lane == 0) stores_read();
    __syncwarp();
#endif
    // a warp has two rows of the tile, a thread of each row the columns lane/4 and 8 more
    const int rows = work.height - top, columns = work.width - tile.column - lane / 4;
    const bool begins = sums.pixels == 0, ends = i < tiles.slots || Tile(work, i - tiles.slots).sample != tile.sample;
    sums.pixels += tile.pixels(work);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      unsigned char* const mine = place + half * ROWS_BYTES;
      float part[32];
#if RESIDUAL
      barrier_wait(barriers + (warp * 2 + half) * 8, phase);
#endif
#if STATS
      if (begins) {  // the values of one pixel: near enough that nothing cancels
        if (threadIdx.x < 4)
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            const int channel = half * DEEP + j * 8 + lane * 2;
            const float* const made = d[0] + half * 32 + j * 4;
            float2 v = make_float2(made[0] + bias[channel], made[1] + bias[channel + 1]);
#if RESIDUAL
            const float2 rest = unpack(*reinterpret_cast<const u32*>(mine + j * 16 + lane * 4));
            v.x += rest.x, v.y += rest.y;
#endif
            near[channel] = v.x, near[channel + 1] = v.y;
          }
        all_consumers();
      }
#pragma unroll
      for (int j = 0; j < 32; ++j) part[j] = 0.f;
#endif
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int channel = half * DEEP + j * 8 + lane % 4 * 2;
        const float2 more = *reinterpret_cast<const float2*>(bias + channel);
        const float2 centre = *reinterpret_cast<const float2*>(near + channel);
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
          for (int row = 0; row < ROWS; ++row) {
            const float* const made = d[m] + half * 32 + j * 4 + row * 2;
            u32* const word = reinterpret_cast<u32*>(mine + (row * TILE + m * 8 + lane / 4) * LINE +
                                                     (j ^ lane / 4) * 16 + lane % 4 * 4);
            float2 v = make_float2(made[0] + more.x, made[1] + more.y);
#if RESIDUAL
            const float2 rest = unpack(*word);
            v.x += rest.x, v.y += rest.y;
#endif
            const u32 packed = pack(v);
            *word = packed;
#if STATS
            if (row < rows && m * 8 < columns) {
              v = unpack(packed);  // the statistics are those of the rounded values
              v.x -= centre.x, v.y -= centre.y;
              part[j * 2] += v.x, part[j * 2 + 1] += v.y;
              part[16 + j * 2] += v.x * v.x, part[16 + j * 2 + 1] += v.y * v.y;
            }
#endif
          }
      }
      written_for_copies();
      __syncwarp();
      if (lane == 0) store_box(y, shared_address(mine), first + half * DEEP, tile.column, top, tile.frame, tile.sample);
#if STATS
      sums.add(part, half);
#endif
    }
#if STATS
    if (ends) {
      if (lane == 0) stores_read();
      all_consumers();
      sums.write(work, tiles, tile.sample, reinterpret_cast<float*>(shared_memory + ROWS_AT), near);
      sums.clear();
      written_for_copies();
      __syncwarp();
    }
#endif
  }
  stores_written();
}

extern "C" __global__ void __launch_bounds__(CONSUMERS + 128, 1)
    conv(const __grid_constant__ Tensor x, const __grid_constant__ Tensor weight,
         const __grid_constant__ Tensor residual, const __grid_constant__ Tensor y, const Work work) {
  const u32 memory = shared_address(shared_memory);
  const bool consumer = threadIdx.x < CONSUMERS;
  // both sides begin in phase 0; waiting for the phase before, the producer finds every stage empty
  const Stages seen(memory + SEEN_AT, memory + BARRIERS_AT, SEEN_STAGE, SEEN_STAGES, !consumer);
  const Stages taps(memory + TAPS_AT, memory + TAP_BARRIERS, TAP_BYTES, TAP_STAGES, !consumer);
  if (threadIdx.x < WIDE) {
    const Tiles tiles(work);
    reinterpret_cast<float*>(shared_memory + BIAS_AT)[threadIdx.x] = work.bias_of(tiles.channel + threadIdx.x);
#if STATS
    Sums::nothing(work, tiles);
#endif
  }
  if (threadIdx.x == 0) {
    for (int i = 0; i < SEEN_STAGES; ++i) barrier_init(seen.full + 8 * i, 1), barrier_init(seen.empty + 8 * i, WARPS);
    for (int i = 0; i < TAP_STAGES; ++i) barrier_init(taps.full + 8 * i, 1), barrier_init(taps.empty + 8 * i, 2);
    for (int i = 0; i < WARPS * 2; ++i) barrier_init(memory + ROWS_BARRIERS + 8 * i, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    written_for_copies();
  }
  __syncthreads();
  if (consumer) {
    more_registers<232>();
    consume(residual, y, work, seen, taps, memory + ROWS_BARRIERS);
  } else {
    fewer_registers<40>();
    if (threadIdx.x == CONSUMERS) produce(x, weight, work, seen, taps);
  }
}
