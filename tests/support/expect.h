/* expect.h - a call that must succeed; its error text ends the test. */
#ifndef WEFT_TESTS_SUPPORT_EXPECT_H
#define WEFT_TESTS_SUPPORT_EXPECT_H

#include <check.h>

#include "node/base/err.h"

/* `call` may use `err`. */
#define OK(call)                                                               \
    do {                                                                       \
        weft_err err = {0};                                                    \
        const weft_status st = (call);                                         \
        ck_assert_msg(st == WEFT_OK, "%s: %s", weft_status_name(st),           \
                      err.text);                                               \
    } while (0)

#endif
