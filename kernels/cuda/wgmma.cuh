// wgmma.cuh - the products of hopper.cuh: d (64 x N, fp32) = a b, or += a b,
// with a 64 x 16 and b 16 x N of bfloat16.
//
// Warp w of the group has the rows 16 w to 16 w + 15. Lane l has in d[4 j + i]
// row l / 4 (+ 8 for i = 2, 3) and column 8 j + 2 (l % 4) + i % 2; words of a
// in registers are those of mma_bf16 (PTX ISA, "Register Fragments for
// wgmma.mma_async.m64nNk16").
//
// The compiler takes no list of registers from an array, so each shape has its
// list written out.
#ifndef WEFT_KERNELS_CUDA_WGMMA_CUH
#define WEFT_KERNELS_CUDA_WGMMA_CUH

#define WEFT_D4(i)  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WEFT_D16(i) WEFT_D4(i), WEFT_D4(i + 4), WEFT_D4(i + 8), WEFT_D4(i + 12)
#define WEFT_D64(i)                                                            \
    WEFT_D16(i), WEFT_D16(i + 16), WEFT_D16(i + 32), WEFT_D16(i + 48)

#define WEFT_R4  "%0,%1,%2,%3"
#define WEFT_R8  WEFT_R4 ",%4,%5,%6,%7"
#define WEFT_R16 WEFT_R8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define WEFT_R32                                                               \
    WEFT_R16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%"  \
             "31"
#define WEFT_R64                                                               \
    WEFT_R32                                                                   \
    ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"         \
    ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define WEFT_R128                                                              \
    WEFT_R64                                                                   \
    ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"         \
    ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"         \
    ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109"       \
    ",%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122"        \
    ",%123,%124,%125,%126,%127"

// n: the columns; regs: the list; d: its operands; w, x, y, z, ...: the numbers
// of the operands after them.
#define WEFT_WGMMA_SS(n, regs, d_list, w, x, y, z)                             \
    asm volatile("{\n"                                                         \
                 ".reg .pred p;\n"                                             \
                 "setp.ne.b32 p, %" #y ", 0;\n"                                \
                 "wgmma.mma_async.sync.aligned.m64n" #n                        \
                 "k16.f32.bf16.bf16 {" regs "}, %" #w ", %" #x                 \
                 ", p, 1, 1, 0, %" #z ";\n"                                    \
                 "}"                                                           \
                 : d_list                                                      \
                 : "l"(a.word), "l"(b.word),                                   \
                   "r"(static_cast<int>(accumulate)), "n"(B_IS_MN ? 1 : 0))
#define WEFT_WGMMA_RS(n, regs, d_list, a0, a1, a2, a3, x, y, z)                \
    asm volatile("{\n"                                                         \
                 ".reg .pred p;\n"                                             \
                 "setp.ne.b32 p, %" #y ", 0;\n"                                \
                 "wgmma.mma_async.sync.aligned.m64n" #n                        \
                 "k16.f32.bf16.bf16 {" regs "}, {%" #a0 ",%" #a1 ",%" #a2      \
                 ",%" #a3 "}, %" #x ", p, 1, 1, %" #z ";\n"                    \
                 "}"                                                           \
                 : d_list                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.word),    \
                   "r"(static_cast<int>(accumulate)), "n"(B_IS_MN ? 1 : 0))

#define WEFT_COMMA_2(a, b) a, b

namespace weft
{

// a in shared memory, k_major. b: k_major, or mn_major where B_IS_MN.
template <int N, bool B_IS_MN = false>
__device__ __forceinline__ void wgmma_bf16(float (&d)[N / 2], matrix_desc a,
                                           matrix_desc b, bool accumulate)
{
    static_assert(N == 8 || N == 16 || N == 32 || N == 64 || N == 128 ||
                      N == 256,
                  "shapes that are written out");
    if constexpr (N == 8) WEFT_WGMMA_SS(8, WEFT_R4, WEFT_D4(0), 4, 5, 6, 7);
    if constexpr (N == 16)
        WEFT_WGMMA_SS(16, WEFT_R8, WEFT_COMMA_2(WEFT_D4(0), WEFT_D4(4)), 8, 9,
                      10, 11);
    if constexpr (N == 32)
        WEFT_WGMMA_SS(32, WEFT_R16, WEFT_D16(0), 16, 17, 18, 19);
    if constexpr (N == 64)
        WEFT_WGMMA_SS(64, WEFT_R32, WEFT_COMMA_2(WEFT_D16(0), WEFT_D16(16)), 32,
                      33, 34, 35);
    if constexpr (N == 128)
        WEFT_WGMMA_SS(128, WEFT_R64, WEFT_D64(0), 64, 65, 66, 67);
    if constexpr (N == 256)
        WEFT_WGMMA_SS(256, WEFT_R128, WEFT_COMMA_2(WEFT_D64(0), WEFT_D64(64)),
                      128, 129, 130, 131);
}

// a in registers, which are not touched before the wait.
template <int N, bool B_IS_MN = false>
__device__ __forceinline__ void wgmma_bf16(float (&d)[N / 2],
                                           const uint32_t (&a)[4],
                                           matrix_desc b, bool accumulate)
{
    static_assert(N == 8 || N == 16 || N == 32 || N == 64 || N == 128 ||
                      N == 256,
                  "shapes that are written out");
    if constexpr (N == 8)
        WEFT_WGMMA_RS(8, WEFT_R4, WEFT_D4(0), 4, 5, 6, 7, 8, 9, 10);
    if constexpr (N == 16)
        WEFT_WGMMA_RS(16, WEFT_R8, WEFT_COMMA_2(WEFT_D4(0), WEFT_D4(4)), 8, 9,
                      10, 11, 12, 13, 14);
    if constexpr (N == 32)
        WEFT_WGMMA_RS(32, WEFT_R16, WEFT_D16(0), 16, 17, 18, 19, 20, 21, 22);
    if constexpr (N == 64)
        WEFT_WGMMA_RS(64, WEFT_R32, WEFT_COMMA_2(WEFT_D16(0), WEFT_D16(16)), 32,
                      33, 34, 35, 36, 37, 38);
    if constexpr (N == 128)
        WEFT_WGMMA_RS(128, WEFT_R64, WEFT_D64(0), 64, 65, 66, 67, 68, 69, 70);
    if constexpr (N == 256)
        WEFT_WGMMA_RS(256, WEFT_R128, WEFT_COMMA_2(WEFT_D64(0), WEFT_D64(64)),
                      128, 129, 130, 131, 132, 133, 134);
}

} // namespace weft

#endif
