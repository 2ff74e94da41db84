// Products of warpgroups (wgmma), for the device.
#pragma once

namespace mc {

// Behind writes of registers that products use, and in front of the products: ``c`` are the sums.
template <int N>
MC_INLINE void fence_products(float (&c)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(c[i])::"memory");
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// The products since the last commit are one group.
MC_INLINE void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until all groups have ended; ``c`` are their sums, which nobody reads before.
template <int N>
MC_INLINE void wait_for_products(float (&c)[N]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(c[i])::"memory");
}

// c[64, 2 N] += a[64, 16] columns[2 N, 16] of a warpgroup. A warp has 16 rows of ``a``, a fragment as that of
// multiply_16x8x16(); its sums are those of as many products of that, eight columns behind eight.
#define MC_NAMES_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define MC_NAMES_64 \
    MC_NAMES_32 \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define MC_NAMES_128 \
    MC_NAMES_64 \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define MC_SUMS_8(i) \
    "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), "+f"(c[i + 6]), "+f"(c[i + 7])
#define MC_SUMS_32(i) MC_SUMS_8(i), MC_SUMS_8(i + 8), MC_SUMS_8(i + 16), MC_SUMS_8(i + 24)
#define MC_SUMS_64(i) MC_SUMS_32(i), MC_SUMS_32(i + 32)
#define MC_SUMS_128(i) MC_SUMS_64(i), MC_SUMS_64(i + 64)
#define MC_MULTIPLY(TYPE, COLUMNS, N, A, B, C, D, AT, MORE)                                                        \
    MC_INLINE void multiply_64x16(float (&c)[N], const u32 (&a)[4], u64 columns, TYPE) {                           \
        asm volatile("{\n"                                                                                         \
                     ".reg .pred more;\n"                                                                          \
                     "setp.ne.b32 more, %" #MORE ", 0;\n"                                                          \
                     "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." #TYPE "." #TYPE " {" MC_NAMES_##N     \
                     "}, {%" #A ", %" #B ", %" #C ", %" #D "}, %" #AT ", more, 1, 1, 0;\n"                         \
                     "}"                                                                                           \
                     : MC_SUMS_##N(0)                                                                              \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(columns), "r"(1)                            \
                     : "memory");                                                                                  \
    }
MC_MULTIPLY(f16, 64, 32, 32, 33, 34, 35, 36, 37)
MC_MULTIPLY(f16, 128, 64, 64, 65, 66, 67, 68, 69)
MC_MULTIPLY(f16, 256, 128, 128, 129, 130, 131, 132, 133)
MC_MULTIPLY(bf16, 64, 32, 32, 33, 34, 35, 36, 37)
MC_MULTIPLY(bf16, 128, 64, 64, 65, 66, 67, 68, 69)
MC_MULTIPLY(bf16, 256, 128, 128, 129, 130, 131, 132, 133)
#undef MC_MULTIPLY
#undef MC_SUMS_128
#undef MC_SUMS_64
#undef MC_SUMS_32
#undef MC_SUMS_8
#undef MC_NAMES_128
#undef MC_NAMES_64
#undef MC_NAMES_32

}  // namespace mc
