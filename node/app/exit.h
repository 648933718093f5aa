/* exit.h - the exit codes of the program, and which one a failure gives.
 *
 * The same status means different things to a user at different moments: a
 * value that is wrong is a usage error on the command line, and a refused
 * checkpoint in a config. So the code comes from the status and from what was
 * being done.
 */
#ifndef WEFT_NODE_APP_EXIT_H
#define WEFT_NODE_APP_EXIT_H

#include "node/base/err.h"

typedef enum weft_exit {
    WEFT_EXIT_DONE = 0,
    WEFT_EXIT_INTERNAL = 1,    /* a defect of ours, or a second signal */
    WEFT_EXIT_USAGE = 2,       /* the command line or an input text is wrong */
    WEFT_EXIT_REFUSED = 3,     /* checkpoint, config or tokenizer refused */
    WEFT_EXIT_RESOURCE = 4,    /* memory, port, device or file permission */
    WEFT_EXIT_UNREACHABLE = 5, /* peer, server or etcd cannot be reached */
    WEFT_EXIT_ANSWERED = 6,    /* the server answered with an error */
} weft_exit;

typedef enum weft_doing {
    WEFT_DOING_USAGE, /* reading flags, or a file a flag names */
    WEFT_DOING_LOAD,  /* reading config, tensors, tokenizer */
    WEFT_DOING_START, /* taking memory, ports, threads, files */
    WEFT_DOING_CALL,  /* calling a server that was reached */
    WEFT_DOING_REACH, /* connecting to one */
} weft_doing;

/* The exit code for a failure with status st. WEFT_INTERNAL gives 1 whatever
 * was being done, but for an answer of a server, which gives 6. */
weft_exit weft_exit_of(weft_status st, weft_doing doing);

#endif
