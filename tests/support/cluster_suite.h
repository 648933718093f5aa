/* cluster_suite.h - what a cluster of threads does, whatever its registry. */
#ifndef WEFT_TESTS_SUPPORT_CLUSTER_SUITE_H
#define WEFT_TESTS_SUPPORT_CLUSTER_SUITE_H

#include <check.h>

#include "tests/support/cluster_party.h"

/* The world's leases should not lapse while anything is waited for. */
void cluster_suite_add(TCase *tests, const party_world *world);
/* What `away` is about; leases of a few seconds, since a member looks after its
 * own as often as that asks for. */
void cluster_suite_add_away(TCase *tests, const party_world *world);

#endif
