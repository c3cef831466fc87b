// What Hopper's tensor cores and its copies of boxes are told: descriptors, products of a warpgroup, loads and stores.

typedef unsigned long long u64;

struct alignas(64) Tensor {  // made by the driver: where a tensor lies, and the box that is copied at once
  u64 opaque[16];
};

// A box of elements, 128 bytes wide, into lines of 128 bytes whose pieces of 16 are swizzled: piece p of the line at an
// address whose bits 7 to 9 are s lies at p ^ s. What lies outside the tensor is zero.
__device__ __forceinline__ void load_box(u32 to, const Tensor& from, u32 barrier, int c, int x, int y, int t, int n) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], "
      "[%2];" ::"r"(to), "l"(&from), "r"(barrier), "r"(c), "r"(x), "r"(y), "r"(t), "r"(n)
      : "memory");
}

__device__ __forceinline__ void load_box(u32 to, const Tensor& from, u32 barrier, int c, int tap, int o) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
          "r"(to), "l"(&from), "r"(barrier), "r"(c), "r"(tap), "r"(o)
      : "memory");
}

// What this thread's stores_written() waits for; nothing is written outside the tensor.
__device__ __forceinline__ void store_box(const Tensor& to, u32 from, int c, int x, int y, int t, int n) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&to),
               "r"(from), "r"(c), "r"(x), "r"(y), "r"(t), "r"(n)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

__device__ __forceinline__ void stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void stores_written() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// What threads wrote to shared memory before is seen by copies after.
__device__ __forceinline__ void written_for_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Rows of 128 bytes, swizzled as above, in groups of eight, ``stride`` bytes from group to group. The swizzle goes by
// absolute addresses, so that a matrix may begin at any line.
__device__ __forceinline__ u64 matrix(u32 at, u32 stride) {
  return u64((at & 0x3ffff) >> 4) | u64(1) << 16 | u64(stride >> 4) << 32 | u64(1) << 62;
}

#define EIGHT(d, i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#if ELEMENT == 1
#define TYPES "bf16.bf16"
#else
#define TYPES "f16.f16"
#endif

// d[64, 128] (+)= a[64, 16] · b[128, 16]ᵀ. Of d a thread has, for eight columns j, rows lane/4 and lane/4 + 8 of its
// warp's 16: d[4j], d[4j + 1] are columns 8j + lane%4·2 and the next of the first, d[4j + 2], d[4j + 3] of the second.
__device__ __forceinline__ void multiply(float (&d)[64], u64 a, u64 b, bool add) {
  asm volatile(
      "{.reg .pred add; setp.ne.b32 add, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPES
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, "
      "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, add, 1, 1, 0, 0;}"
      : EIGHT(d, 0), EIGHT(d, 8), EIGHT(d, 16), EIGHT(d, 24), EIGHT(d, 32), EIGHT(d, 40), EIGHT(d, 48), EIGHT(d, 56)
      : "l"(a), "l"(b), "r"(int(add)));
}

__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until all but the last ``PENDING`` runs of products, from begin to end, are done.
template <int PENDING>
__device__ __forceinline__ void products_done() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Nothing that reads d is moved in front of this.
__device__ __forceinline__ void settled(float (&d)[64]) {
#pragma unroll
  for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

template <int REGISTERS>
__device__ __forceinline__ void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS>
__device__ __forceinline__ void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
