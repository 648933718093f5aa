/* address.h - HOST:PORT is node/base/address.h. */
#ifndef WEFT_NODE_RPC_ADDRESS_H
#define WEFT_NODE_RPC_ADDRESS_H

#include "node/base/address.h"

#endif
