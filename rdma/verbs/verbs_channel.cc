#include "rdma/verbs/verbs_channel.h"

#include "numa/check.h"

namespace fastdecode {

namespace {

ibv_sge Piece(const VerbsWiring::Local& memory, size_t offset, size_t bytes) {
  return {memory.address + offset, static_cast<uint32_t>(bytes), memory.key};
}

ibv_send_wr WriteRequest(const VerbsWiring::Remote& memory, size_t offset, ibv_wr_opcode opcode, ibv_sge* pieces,
                         int count) {
  ibv_send_wr request = {};
  request.sg_list = pieces;
  request.num_sge = count;
  request.opcode = opcode;
  request.wr.rdma.remote_addr = memory.address + offset;
  request.wr.rdma.rkey = memory.key;
  return request;
}

}  // namespace

VerbsChannel::VerbsChannel(const VerbsWiring& wiring, MessageKind own, MessageKind theirs, VerbsLiveness* liveness,
                           VerbsBulk* bulk)
    : wiring_(wiring),
      own_kind_(own),
      their_kind_(theirs),
      liveness_(liveness),
      bulk_(bulk),
      sends_(wiring.queue_pair, wiring.depths.send),
      receives_(wiring.queue_pair, wiring.depths.receive, MessageKind::kNone) {
  BuildSlots();
  BuildControl();
}

void VerbsChannel::BuildSlots() {
  const RegionLayout& here = wiring_.out_layout;
  const RegionLayout& there = wiring_.peer_layout;
  const size_t pieces = (here.payload_bytes_max() + wiring_.chunk_bytes - 1) / wiring_.chunk_bytes;
  FD_CHECK(pieces + 1 <= wiring_.depths.send / 2, "a chain is at most half the send queue");
  slots_.resize(static_cast<size_t>(here.slots()));
  for (int slot = 0; slot < here.slots(); ++slot) {
    SlotRequests& requests = slots_[static_cast<size_t>(slot)];
    const size_t line = there.line_offset(slot);
    requests.line_piece = Piece(wiring_.out, here.line_offset(slot), sizeof(MessageLine));
    requests.line = WriteRequest(wiring_.peer_slots, line, IBV_WR_RDMA_WRITE_WITH_IMM, &requests.line_piece, 1);
    requests.whole_pieces = {requests.line_piece, Piece(wiring_.out_payload, here.payload_offset(slot), 0)};
    requests.whole =
        WriteRequest(wiring_.peer_slots, line, IBV_WR_RDMA_WRITE_WITH_IMM, requests.whole_pieces.data(), 1);
    requests.chain.resize(pieces);
    requests.chain_pieces.resize(pieces);
    for (size_t i = 0; i < pieces; ++i) {
      const size_t offset = i * wiring_.chunk_bytes;
      requests.chain_pieces[i] = Piece(wiring_.out_payload, here.payload_offset(slot) + offset, 0);
      requests.chain[i] = WriteRequest(wiring_.peer_payload, there.payload_offset(slot) + offset, IBV_WR_RDMA_WRITE,
                                       &requests.chain_pieces[i], 1);
    }
  }
}

void VerbsChannel::BuildControl() {
  const RegionLayout& here = wiring_.out_layout;
  const RegionLayout& there = wiring_.peer_layout;
  for (size_t i = 0; i < control_.size(); ++i) {
    control_pieces_[i] = Piece(wiring_.out, here.ring_offset(), 0);
    control_[i] =
        WriteRequest(wiring_.peer_control, there.ring_offset(), IBV_WR_RDMA_WRITE_WITH_IMM, &control_pieces_[i], 1);
  }
  ring_ = WriteRequest(wiring_.peer_control, there.ring_offset(), IBV_WR_RDMA_WRITE_WITH_IMM, nullptr, 0);
  credit_piece_ = Piece(wiring_.out, here.credit_offset(), kCreditBytes);
  credit_ = WriteRequest(wiring_.peer_control, there.credit_offset(), IBV_WR_RDMA_WRITE, &credit_piece_, 1);
}

}  // namespace fastdecode
