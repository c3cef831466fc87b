// Types and conversions.
//
// Set from outside: ELEMENT (0 float, 1 bfloat16, 2 half).

typedef unsigned int u32;
typedef long long i64;

#if ELEMENT == 0
constexpr int V = 4;
#else
constexpr int V = 8;
#endif

constexpr int VECTOR = 16;  // bytes

#if ELEMENT != 0
__device__ __forceinline__ float2 unpack(u32 word) {
  float2 x;
#if ELEMENT == 1
  x.x = __uint_as_float(word << 16);
  x.y = __uint_as_float(word & 0xffff0000u);
#else
  asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
      : "=f"(x.x), "=f"(x.y)
      : "r"(word));
#endif
  return x;
}

__device__ __forceinline__ u32 pack(float2 x) {
  u32 word;
#if ELEMENT == 1
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(x.y), "f"(x.x));
#else
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(x.y), "f"(x.x));
#endif
  return word;
}
#endif

__device__ __forceinline__ void unpack(const uint4& raw, float (&x)[V]) {
  const u32 word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#if ELEMENT == 0
    x[i] = __uint_as_float(word[i]);
#else
    const float2 two = unpack(word[i]);
    x[2 * i] = two.x, x[2 * i + 1] = two.y;
#endif
  }
}

__device__ __forceinline__ uint4 pack(const float (&x)[V]) {
  u32 word[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#if ELEMENT == 0
    word[i] = __float_as_uint(x[i]);
#else
    word[i] = pack(make_float2(x[2 * i], x[2 * i + 1]));
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
