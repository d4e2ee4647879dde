/* Where things lie in a rank page, in words of 64 bits: rank_page/page.py and collective_records.py, which a test
 * compares with this. */

#ifndef GOODPUT_NCCL_LAYOUT_H
#define GOODPUT_NCCL_LAYOUT_H

#define PAGE_MAGIC 0x00545550444f4f47ull
#define PAGE_VERSION 5
#define FILE_BYTES 15532032ull
#define W_MAGIC 0
#define W_VERSION 1
#define W_SIZE 2
#define W_IDENTITY_BYTES 3
#define IDENTITY_OFFSET 64
#define IDENTITY_BYTES_MAX 4032
#define IDENTITY_OFFSET_ODD 9216
#define IDENTITY_BYTES_ODD 3072
#define REVISION_SHIFT 12
#define W_LAST 512
#define W_PHASE 513
#define W_STEPS 514
#define W_STEP_NEXT 516
#define W_STEP_START 517
#define W_ENDED 518
#define W_END 519
#define W_REVISION 524
#define PHASE_NONE 0
#define PHASE_COMMUNICATION 6
#define END_FINISHED 1
#define END_FAILED 2
#define STEP_BIAS (1ull << 63)
#define LIVE_BYTES 12288 /* what a page without steps and events has at its start */

#define W_COLLECTIVES 1915904
#define COLLECTIVES_WORDS 25600
#define WRITTEN 0
#define GROUPS 1
#define DROPPED 2
#define LOST 3
#define AT_HIDDEN 4
#define HIDDEN_WORDS 4
#define HIDDEN_MAX 31
#define GROUPS_MAX 128
#define GROUP_WORDS 64
#define AT_NETWORK 128
#define NETWORK_WORDS 7
#define AT_GROUPS 1024
#define G_SEAL 0
#define G_SIZE 1
#define G_RANK 2
#define G_CALLS 3
#define G_P2P 4
#define G_LAST 5
#define G_RUNS 6
#define G_NAME 8
#define G_DESCRIPTION 16
#define G_BACKEND 24
#define G_RANKS 28
#define TEXT_BYTES 64
#define BACKEND_BYTES 32
#define AT_SUMS 9216
#define SUM_WORDS 4
#define OPERATION_SLOTS 16
#define AT_RING 17408
#define RING 512
#define RECORD_WORDS 16
#define R_NUMBER 0
#define R_KIND 1
#define R_SEQUENCE 2
#define R_PEER 3
#define R_BYTES 4
#define R_ENTER 5
#define R_RETURN 6
#define R_EXIT 7
#define R_EXPOSED 8
#define R_STEP 9
#define R_PHASE 10
#define R_DEVICE 11
#define R_NETWORK_BYTES 12
#define R_NETWORK_NS 13
#define R_SEAL 15

#endif
