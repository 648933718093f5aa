/* start.h - what the commands that run for long do alike when they start.
 *
 * Threads: the main one.
 */
#ifndef WEFT_NODE_APP_START_H
#define WEFT_NODE_APP_START_H

#include "node/app/options.h"

/* Each connection is a descriptor, and so is each file of a sharded checkpoint:
 * the soft limit, meant for programs that use select, is raised to the hard
 * one. RESOURCE_EXHAUSTED: fewer than what the gRPC library needs. */
WEFT_MUST_CHECK weft_status weft_start_raise_descriptors(weft_err *err);

/* A port in use should not be found out after ten minutes of loading: bound and
 * let go here, in earnest at the end. UNAVAILABLE: names flag and address. */
WEFT_MUST_CHECK weft_status weft_start_check_port(
    const char *flag, const weft_flag_address *address, weft_err *err);

/* A weft_remark_fn, arg a weft_buf: reasons are for who asks for them (weft
 * check prints them); the names are gathered, to be told in one line. */
void weft_start_remark(void *arg, const char *key, const char *reason);

#endif
