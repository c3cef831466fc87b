// The ring for compute capability 9.0 and later. The last warp of a block is the producer: it fills stages of shared
// memory by bulk copies, PREFETCH tiles ahead of the one being consumed; the other warps consume.
//
// All copies of a tile, of one or two maps and one or many rows, complete on the one "full" barrier of its stage. The
// "empty" barrier of a stage counts the consumer warps that are done with it.

constexpr int BARRIER_BYTES = (STAGES * 16 + 127) / 128 * 128;

__device__ __forceinline__ void bulk_copy(u32 to, const char* from, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier)
               : "memory");
}

struct Ring {
  unsigned char* stages;
  u32 full, empty;

  __device__ explicit Ring(unsigned char* memory)
      : stages(memory + BARRIER_BYTES), full(shared_address(memory)), empty(full + STAGES * 8) {}

  static __device__ int consumer_threads() { return blockDim.x - 32; }

  __device__ void init() const {
    if (threadIdx.x == 0) {
      for (int s = 0; s < STAGES; ++s) {
        barrier_init(full + s * 8, 1);
        barrier_init(empty + s * 8, consumer_threads() / 32);
      }
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
  }

  template <int MAPS>
  __device__ void produce(const Work& work, const Map (&from)[MAPS]) const {
    const int thread = threadIdx.x % 32, row_bytes = work.groups * VECTOR;
    const i64 sample = work.sample(), tiles = work.tiles();
    int turn = 0;
    for (i64 i = work.first(); i < tiles; i += work.blocks, ++turn) {
      if (turn > PREFETCH) {  // tile turn-PREFETCH-1 is consumed, so the stage of the earlier tile turn-STAGES is free
        const int done = turn - PREFETCH - 1;
        barrier_wait(empty + done % STAGES * 8, done / STAGES & 1);
      }
      const int stage = turn % STAGES;
      const Tile tile(work, i);
      const u32 bytes = tile.count * row_bytes, barrier = full + stage * 8;
      if (thread == 0) barrier_arrive_expecting(barrier, MAPS * bytes);
      __syncwarp();
#pragma unroll
      for (int m = 0; m < MAPS; ++m) {
        const char* source = tile.in(from[m], sample);
        const u32 to = shared_address(stages) + (stage * MAPS + m) * work.tile_bytes();
        if (from[m].pixel == row_bytes) {
          if (thread == 0) bulk_copy(to, source, bytes, barrier);
        } else {
          for (int p = thread; p < tile.count; p += 32)
            bulk_copy(to + p * row_bytes, source + p * from[m].pixel, row_bytes, barrier);
        }
      }
    }
  }

  template <int MAPS, class Body>
  __device__ void consume(const Work& work, const Place& place, Body& body) const {
    const i64 sample = work.sample(), tiles = work.tiles();
    int turn = 0;
    for (i64 i = work.first(); i < tiles; i += work.blocks, ++turn) {
      const int stage = turn % STAGES;
      barrier_wait(full + stage * 8, turn / STAGES & 1);
      const Tile tile(work, i);
      body.tile(tile, sample);
      const unsigned char* at = stages + stage * MAPS * work.tile_bytes() + place.group * VECTOR;
#pragma unroll 2
      for (int p = place.lane; p < tile.count; p += work.lanes) {
        uint4 raw[MAPS];
#pragma unroll
        for (int m = 0; m < MAPS; ++m)
          raw[m] = *reinterpret_cast<const uint4*>(at + m * work.tile_bytes() + p * work.groups * VECTOR);
        body.vector(raw, p);
      }
      __syncwarp();
      if (threadIdx.x % 32 == 0) barrier_arrive(empty + stage * 8);
    }
  }

  // what was initialised and read before is seen by all; afterwards no thread uses the stages
  template <int MAPS, class Body>
  __device__ void run(const Work& work, const Place& place, const Map (&from)[MAPS], Body& body) const {
    init();
    __syncthreads();
    if (int(threadIdx.x) < consumer_threads())
      consume<MAPS>(work, place, body);
    else
      produce<MAPS>(work, from);
    __syncthreads();
  }
};
