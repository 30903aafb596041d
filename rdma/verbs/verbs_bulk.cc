#include "rdma/verbs/verbs_bulk.h"

#include "numa/check.h"

namespace fastdecode {

VerbsBulk::VerbsBulk(const VerbsWiring& wiring, VerbsLiveness* liveness)
    : wiring_(wiring),
      liveness_(liveness),
      sends_(wiring.bulk_pair, wiring.bulk_depths.send),
      receives_(wiring.bulk_pair, wiring.bulk_depths.receive, MessageKind::kBulk) {
  FD_CHECK(wiring.bulk_pair != nullptr, "no bulk channel");
  pieces_[0].lkey = wiring.bulk.key;
  pieces_[1].lkey = wiring.bulk_trailer.key;
  pieces_[1].length = sizeof(BulkTrailer);
  request_.sg_list = pieces_.data();
  request_.num_sge = 2;
  request_.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request_.wr.rdma.rkey = wiring.peer_bulk.key;
}

}  // namespace fastdecode
