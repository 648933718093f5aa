/* bench_device.c - how fast and how right the ops of a device are, at the
 * shapes of dots3-note, beside what the device can do.
 *
 *     bench_device --library PATH [--tiny] [case ...]
 *
 * One JSON line a case: microseconds, bytes and operations a second, the shares
 * of the rate of a copy and of the best product of the same run, and how far
 * samples of the result are from plain double sums on the host (the largest
 * difference over the largest value; of a choice of keys, the share that is
 * another). --tiny: shapes that an emulator can run; its times mean nothing.
 * 77 where there is no device.
 *
 * A time is that of many launches between two syncs, over their number, the
 * best of some rounds. The scratch is what serve gives. Operands are taken from
 * all over large blocks, so that few of them are found in a cache.
 */
#include <stdio.h>
#include <string.h>

#include "tests/bench/device/device.h"

int main(int argc, char **argv)
{
    struct bench b = {0};
    const char *library = NULL;
    int at = 1;
    for (; at < argc && strncmp(argv[at], "--", 2) == 0; at++) {
        if (strcmp(argv[at], "--tiny") == 0)
            b.tiny = true;
        else if (strcmp(argv[at], "--library") == 0 && at + 1 < argc)
            library = argv[++at];
        else
            break;
    }
    if (library == NULL || (at < argc && strncmp(argv[at], "--", 2) == 0)) {
        (void)fprintf(stderr, "usage: bench_device --library PATH [--tiny] "
                              "[case ...]\n");
        return 2;
    }
    b.wanted = argv + at;
    b.n_wanted = argc - at;
    bench_open(&b, library);
    bench_copy(&b);
    bench_products(&b);
    bench_attention(&b);
    bench_index(&b);
    bench_rows(&b);
    bench_close(&b);
    return 0;
}
