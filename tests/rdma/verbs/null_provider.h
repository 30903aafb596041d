#ifndef FASTDECODE_TESTS_RDMA_VERBS_NULL_PROVIDER_H_
#define FASTDECODE_TESTS_RDMA_VERBS_NULL_PROVIDER_H_

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "numa/check.h"
#include "tests/rdma/verbs/verbs_pair.h"

namespace fastdecode {

// One end's queue pair and what it can poll.
struct NullSide {
  ibv_qp* pair = nullptr;
  ibv_cq* queue = nullptr;
  NullSide* peer = nullptr;
  std::array<ibv_wc, 256> completions = {};
  uint32_t head = 0;
  uint32_t tail = 0;

  void Push(const ibv_wc& completion) {
    FD_CHECK(tail - head < completions.size(), "too many completions for the null provider");
    completions[tail++ % completions.size()] = completion;
  }
};

// Takes the place of the made-up adapters of a pair on its data path: posting copies the bytes at once, polling hands
// out what was announced. Checks and allocates nothing, so that what is left is the cost of our own code.
// Owns: nothing; one at a time in a program. Thread: one.
class NullProvider {
 public:
  explicit NullProvider(VerbsPair* pair) : pair_(pair), ops_(pair->engine_context->ops) {
    sides_ = {};
    for (int i = 0; i < 2; ++i) {
      const VerbsWiring& wiring = i == 0 ? pair->engine_wiring : pair->home_wiring;
      sides_[i].pair = wiring.queue_pair;
      sides_[i].queue = wiring.completions;
      sides_[i].peer = &sides_[1 - i];
    }
    for (ibv_context* context : {pair->engine_context, pair->home_context}) {
      context->ops.post_send = &PostSend;
      context->ops.post_recv = [](ibv_qp*, ibv_recv_wr*, ibv_recv_wr**) { return 0; };
      context->ops.poll_cq = &Poll;
    }
  }
  // The pair's own adapters take it down.
  ~NullProvider() { pair_->engine_context->ops = pair_->home_context->ops = ops_; }
  NullProvider(const NullProvider&) = delete;
  NullProvider& operator=(const NullProvider&) = delete;

 private:
  static int PostSend(ibv_qp* qp, ibv_send_wr* request, ibv_send_wr**) {
    NullSide& side = sides_[qp == sides_[0].pair ? 0 : 1];
    for (; request != nullptr; request = request->next) {
      uint32_t bytes = 0;
      if (request->num_sge > 0) {
        bytes = request->sg_list->length;
        std::memcpy(reinterpret_cast<void*>(request->wr.rdma.remote_addr),
                    reinterpret_cast<const void*>(request->sg_list->addr), bytes);
      }
      ibv_wc completion = {};
      if (request->opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
        completion.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
        completion.wc_flags = IBV_WC_WITH_IMM;
        completion.imm_data = request->imm_data;
        completion.byte_len = bytes;
        side.peer->Push(completion);
      }
      if ((request->send_flags & IBV_SEND_SIGNALED) != 0) {
        completion.opcode = IBV_WC_RDMA_WRITE;
        completion.wr_id = request->wr_id;
        side.Push(completion);
      }
    }
    return 0;
  }

  static int Poll(ibv_cq* cq, int count_max, ibv_wc* completions) {
    NullSide& side = sides_[cq == sides_[0].queue ? 0 : 1];
    int count = 0;
    for (; count < count_max && side.head != side.tail; ++count) {
      completions[count] = side.completions[side.head++ % side.completions.size()];
    }
    return count;
  }

  static inline std::array<NullSide, 2> sides_;

  VerbsPair* const pair_;
  const ibv_context_ops ops_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_RDMA_VERBS_NULL_PROVIDER_H_
