/* library.h - the gRPC library as a whole. Threads: any. */
#ifndef WEFT_NODE_RPC_LIBRARY_H
#define WEFT_NODE_RPC_LIBRARY_H

/* As grpc_init, to be ended with grpc_shutdown; what the library logs goes to
 * our log, at its lowest level: its lines are for whoever debugs gRPC. */
void weft_grpc_begin(void);

#endif
