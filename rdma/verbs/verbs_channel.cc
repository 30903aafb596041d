#include "rdma/verbs/verbs_channel.h"

namespace fastdecode {

namespace {

ibv_send_wr WriteRequest(uint64_t peer_address, uint32_t peer_key, ibv_wr_opcode opcode, ibv_sge* piece) {
  ibv_send_wr request = {};
  request.sg_list = piece;
  request.num_sge = piece == nullptr ? 0 : 1;
  request.opcode = opcode;
  request.wr.rdma.remote_addr = peer_address;
  request.wr.rdma.rkey = peer_key;
  return request;
}

}  // namespace

VerbsChannel::VerbsChannel(const VerbsWiring& wiring, MessageKind own, MessageKind theirs, VerbsLiveness* liveness)
    : wiring_(wiring), own_kind_(own), their_kind_(theirs), liveness_(liveness) {
  BuildSlots();
  BuildControl();
  BuildReceives();
}

void VerbsChannel::BuildSlots() {
  const RegionLayout& layout = wiring_.out_layout;
  const size_t message_bytes = layout.message_bytes_max();
  const size_t pieces =
      message_bytes <= kOneWriteBytesMax ? 0 : (message_bytes + wiring_.chunk_bytes - 1) / wiring_.chunk_bytes;
  FD_CHECK(pieces + 1 <= wiring_.send_depth / 2, "a chain is at most half the send queue");
  slots_.resize(static_cast<size_t>(layout.slots()));
  for (int slot = 0; slot < layout.slots(); ++slot) {
    SlotRequests& requests = slots_[static_cast<size_t>(slot)];
    const uint64_t local = reinterpret_cast<uint64_t>(wiring_.out) + layout.line_offset(slot);
    const uint64_t remote = wiring_.peer_address + layout.line_offset(slot);
    requests.chain.resize(pieces);
    requests.pieces.resize(pieces);
    for (size_t i = 0; i < pieces; ++i) {
      requests.pieces[i] = {local + i * wiring_.chunk_bytes, 0, wiring_.out_key};
      requests.chain[i] = WriteRequest(remote + i * wiring_.chunk_bytes, wiring_.peer_slots_key, IBV_WR_RDMA_WRITE,
                                       &requests.pieces[i]);
    }
    requests.whole = {local, 0, wiring_.out_key};
    requests.notify = WriteRequest(remote, wiring_.peer_slots_key, IBV_WR_RDMA_WRITE_WITH_IMM, &requests.whole);
  }
}

void VerbsChannel::BuildControl() {
  const RegionLayout& layout = wiring_.out_layout;
  const uint64_t local = reinterpret_cast<uint64_t>(wiring_.out);
  const uint64_t remote_ring = wiring_.peer_address + layout.ring_offset();
  for (size_t i = 0; i < control_.size(); ++i) {
    control_pieces_[i] = {local + layout.ring_offset(), 0, wiring_.out_key};
    control_[i] = WriteRequest(remote_ring, wiring_.peer_control_key, IBV_WR_RDMA_WRITE_WITH_IMM, &control_pieces_[i]);
  }
  ring_ = WriteRequest(remote_ring, wiring_.peer_control_key, IBV_WR_RDMA_WRITE_WITH_IMM, nullptr);
  credit_piece_ = {local + layout.credit_offset(), kCreditBytes, wiring_.out_key};
  credit_ = WriteRequest(wiring_.peer_address + layout.credit_offset(), wiring_.peer_control_key, IBV_WR_RDMA_WRITE,
                         &credit_piece_);
}

void VerbsChannel::BuildReceives() {
  receives_.resize(wiring_.receive_depth / 4 + kPollBatch);
  for (size_t i = 0; i < receives_.size(); ++i) {
    receives_[i] = {};
    receives_[i].wr_id = WrId(MessageKind::kNone, 0, 0).bits();
    receives_[i].next = i + 1 < receives_.size() ? &receives_[i + 1] : nullptr;
  }
}

}  // namespace fastdecode
