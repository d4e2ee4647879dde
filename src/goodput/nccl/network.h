/* The transfers that the proxy thread makes. */

#ifndef GOODPUT_NCCL_NETWORK_H
#define GOODPUT_NCCL_NETWORK_H

#include "interface.h"

void *start_step(const void *operation);
void change_step(const void *handle, int state, const union state_arguments *);
void stop_step(const void *handle);

#endif
