/* clock.h - time for those who may look at it. Policy code takes now_ns. */
#ifndef WEFT_NODE_BASE_CLOCK_H
#define WEFT_NODE_BASE_CLOCK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __cplusplus
extern "C" {
#endif

uint64_t weft_clock_now_ns(void); /* CLOCK_MONOTONIC */

#ifdef __cplusplus
}
#endif

#ifdef __cplusplus
}
#endif

#endif
