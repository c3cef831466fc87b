// The ring for compute capability 8.0 and later: every thread copies the vectors that it will consume itself, 16 bytes
// at a time and PREFETCH tiles ahead, so that its own groups of copies are all there is to wait for.

__device__ __forceinline__ void copy_async(u32 to, const char* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(__cvta_generic_to_global(from)) : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int LATEST>
__device__ __forceinline__ void wait_but_latest() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LATEST) : "memory");
}

struct Ring {
  unsigned char* stages;

  __device__ explicit Ring(unsigned char* memory) : stages(memory) {}

  static __device__ int consumer_threads() { return blockDim.x; }

  template <int MAPS>
  __device__ void fetch(const Work& work, const Place& place, const Map (&from)[MAPS], i64 i, int turn) const {
    if (i < work.tiles()) {
      const Tile tile(work, i);
#pragma unroll
      for (int m = 0; m < MAPS; ++m) {
        const char* source = tile.in(from[m], work.sample()) + place.group * VECTOR;
        const u32 to = shared_address(stages) + (turn % STAGES * MAPS + m) * work.tile_bytes() + place.group * VECTOR;
        for (int p = place.lane; p < tile.count; p += work.lanes)
          copy_async(to + p * work.groups * VECTOR, source + p * from[m].pixel);
      }
    }
    commit_copies();
  }

  template <int MAPS, class Body>
  __device__ void run(const Work& work, const Place& place, const Map (&from)[MAPS], Body& body) const {
    __syncthreads();  // before anything is written, all have read what they need of the maps
    const i64 sample = work.sample(), tiles = work.tiles();
    i64 ahead = work.first();
    int turn = 0;
    for (; turn < PREFETCH; ++turn, ahead += work.blocks) fetch<MAPS>(work, place, from, ahead, turn);
    turn = 0;
    for (i64 i = work.first(); i < tiles; i += work.blocks, ahead += work.blocks, ++turn) {
      // into a stage whose tile, turn+PREFETCH-STAGES or earlier, this thread has consumed
      fetch<MAPS>(work, place, from, ahead, turn + PREFETCH);
      wait_but_latest<PREFETCH>();
      const Tile tile(work, i);
      body.tile(tile, sample);
      const unsigned char* at = stages + turn % STAGES * MAPS * work.tile_bytes() + place.group * VECTOR;
#pragma unroll 2
      for (int p = place.lane; p < tile.count; p += work.lanes) {
        uint4 raw[MAPS];
#pragma unroll
        for (int m = 0; m < MAPS; ++m)
          raw[m] = *reinterpret_cast<const uint4*>(at + m * work.tile_bytes() + p * work.groups * VECTOR);
        body.vector(raw, p);
      }
    }
    wait_but_latest<0>();
    __syncthreads();
  }
};
