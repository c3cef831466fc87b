// The shape of the work, the same for both forms of the ring.
//
// Set from outside: STAGES, PREFETCH.
//
// Pixels lie with channels innermost. A thread owns one "group", the 16 bytes of V neighbouring channels, and walks
// over pixels, so that what belongs to a channel stays in its registers.

constexpr int NOWHERE = 1 << 30;  // lane of a thread that owns nothing: beyond the pixels of any tile

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
