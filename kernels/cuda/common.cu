// Types, conversions and the shape of the work; shared by both forms of the ring.
//
// Set from outside: ELEMENT (0 float, 1 bfloat16, 2 half), STAGES, PREFETCH.
//
// Pixels lie with channels innermost. A thread owns one "group", the 16 bytes of V neighbouring channels, and walks
// over pixels, so that what belongs to a channel stays in its registers.

typedef unsigned int u32;
typedef long long i64;

#if ELEMENT == 0
constexpr int V = 4;
#else
constexpr int V = 8;
#endif

constexpr int VECTOR = 16;          // bytes
constexpr int NOWHERE = 1 << 30;    // lane of a thread that owns nothing: beyond the pixels of any tile

struct Map {  // strides in bytes
  char* base;
  i64 sample, outer, pixel;
};

struct Work {
  i64 blocks, outer, pixels, per_run;  // blocks per sample; runs per sample; pixels per run; tiles per run
  int tile, groups, lanes;  // pixels per tile; groups per pixel; pixels that the block's consumers take at once
  bool backwards;  // the last tiles first

  __device__ i64 sample() const { return blockIdx.x / blocks; }
  __device__ i64 first() const { return blockIdx.x % blocks; }
  __device__ i64 tiles() const { return outer * per_run; }
  __device__ int tile_bytes() const { return tile * groups * VECTOR; }
  __device__ int consumers() const { return groups * lanes; }
};

struct Tile {  // where a tile starts, in units of runs and pixels, and its pixels; i counts as the blocks take them
  i64 run, start;
  int count;

  __device__ Tile(const Work& work, i64 i) {
    if (work.backwards) i = work.tiles() - 1 - i;
    run = work.outer == 1 ? 0 : i / work.per_run;
    start = (i - run * work.per_run) * work.tile;
    const i64 rest = work.pixels - start;
    count = rest < work.tile ? int(rest) : work.tile;
  }

  __device__ char* in(const Map& map, i64 sample) const {
    return map.base + sample * map.sample + run * map.outer + start * map.pixel;
  }
};

struct Place {  // which group of which pixels a thread owns
  int group, lane;

  __device__ explicit Place(const Work& work) {
    const int t = threadIdx.x;
    group = t < work.consumers() ? t % work.groups : 0;
    lane = t < work.consumers() ? t / work.groups : NOWHERE;
  }
};

__device__ __forceinline__ void unpack(const uint4& raw, float (&x)[V]) {
  const u32 word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#if ELEMENT == 0
    x[i] = __uint_as_float(word[i]);
#elif ELEMENT == 1
    x[2 * i] = __uint_as_float(word[i] << 16);
    x[2 * i + 1] = __uint_as_float(word[i] & 0xffff0000u);
#else
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
        : "=f"(x[2 * i]), "=f"(x[2 * i + 1])
        : "r"(word[i]));
#endif
  }
}

__device__ __forceinline__ uint4 pack(const float (&x)[V]) {
  u32 word[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#if ELEMENT == 0
    word[i] = __float_as_uint(x[i]);
#elif ELEMENT == 1
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word[i]) : "f"(x[2 * i + 1]), "f"(x[2 * i]));
#else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word[i]) : "f"(x[2 * i + 1]), "f"(x[2 * i]));
#endif
  }
  return make_uint4(word[0], word[1], word[2], word[3]);
}

// x / (1 + exp(-x)) to about 3e-7: exp overflows to infinity where the result is 0, and NaN stays NaN
__device__ __forceinline__ float silu(float x) {
  float e, r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * -1.4426950408889634f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.0f + e));
  return x * r;
}

__device__ __forceinline__ u32 shared_address(const void* p) { return u32(__cvta_generic_to_shared(p)); }
