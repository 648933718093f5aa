/* cluster_suite.h - what a cluster of threads does, whatever its registry. */
#ifndef WEFT_TESTS_SUPPORT_CLUSTER_SUITE_H
#define WEFT_TESTS_SUPPORT_CLUSTER_SUITE_H

#include <check.h>

#include "tests/support/cluster_party.h"

void cluster_suite_add(TCase *tests, const party_world *world);
/* Of it what `away` is about. */
void cluster_suite_add_away(TCase *tests, const party_world *world);

#endif
