/* check.h - assertions: our own invariants, never outside input.
 *
 * WEFT_ASSERT holds in every build: it prints the condition and aborts, since
 * the state cannot be trusted. WEFT_DEBUG_ASSERT is for checks that are
 * dear; it is compiled only where NDEBUG is not set.
 */
#ifndef WEFT_NODE_BASE_CHECK_H
#define WEFT_NODE_BASE_CHECK_H

#ifdef __cplusplus
extern "C" {
#endif

__attribute__((noreturn, cold)) void weft_panic(const char *file, int line,
                                                const char *what);

#define WEFT_ASSERT(cond)                                                      \
    ((cond) ? (void)0 : weft_panic(__FILE__, __LINE__, #cond))

#ifdef NDEBUG
#define WEFT_DEBUG_ASSERT(cond) ((void)sizeof(cond))
#else
#define WEFT_DEBUG_ASSERT(cond) WEFT_ASSERT(cond)
#endif

#ifdef __cplusplus
}
#endif

#endif
