/* group_kit.h - a group of ranks (shard/comm/group.h) for tests of any memory:
 * each rank a thread, sums compared by their bits. */
#ifndef WEFT_TESTS_SUPPORT_GROUP_KIT_H
#define WEFT_TESTS_SUPPORT_GROUP_KIT_H

#include "shard/comm/group.h"

enum { GROUP_KIT_ROWS_MAX = 37, GROUP_KIT_WIDTH_MAX = 1200 };

weft_comm_group *group_kit_create(int32_t n_ranks, const weft_memory *memories,
                                  const weft_ops *ops);

/* Runs fn for each rank on a thread that is bound to its memory and has joined;
 * waits for all, then destroys the group. */
void group_kit_run(weft_comm_group *group, const weft_memory *memories,
                   int32_t n_ranks,
                   void (*fn)(weft_comm_rank *rank, const weft_memory *memory,
                              int32_t i, void *arg),
                   void *arg);

/* Sums of many shapes, by shares and whole, against a plain loop in the order
 * of ranks, all ranks; and a row's sum whatever rows are beside it. */
void group_kit_check_sums(int32_t n_ranks, const weft_memory *memories,
                          const weft_ops *ops);

/* One rank fails while the others are in a sum, or come to one: all of them end
 * with its reason. */
void group_kit_check_abort(int32_t n_ranks, const weft_memory *memories,
                           const weft_ops *ops);

#endif
