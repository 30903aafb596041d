// FAST PATH (docs/FAST_PATH.md)
#include <algorithm>
#include <atomic>
#include <cstring>

#include "numa/check.h"
#include "rdma/verbs/crc32c.h"
#include "rdma/verbs/verbs_bulk.h"
#include "rdma/verbs/verbs_memory_fastpath.h"

namespace fastdecode {

// ---- The engine's end ----

void VerbsBulk::TakeCredit() {
  const std::byte* const line = wiring_.in.data + wiring_.in_layout.credit_offset();
  // Acquire: pairs with the device's write of the word, posted by the home after it had read the segments; we overwrite
  // them afterwards.
  const uint64_t segments = LoadWord(line + offsetof(CreditLine, segments), std::memory_order_acquire);
  if (segments > written_) return Lose("bulk credit out of bounds");
  // On a fabric with several paths an older write may land after a newer one; the next credit makes that good.
  credit_ = std::max(credit_, segments);
}

uint64_t VerbsBulk::Credit() {
  if (!Stopped()) TakeCredit();
  return credit_;
}

uint64_t VerbsBulk::Tag(uint64_t number, const std::byte* segment, size_t bytes) const {
  return wiring_.checksum ? Crc32c(Crc32c(0, &number, sizeof(number)), segment, bytes) : number;
}

std::byte* VerbsBulk::Area() {
  if (written_ - credit_ == wiring_.bulk_layout.segments()) TakeCredit();
  const bool free = written_ - credit_ < wiring_.bulk_layout.segments() && sends_.HasRoom(1);
  return free && !Stopped() ? wiring_.bulk.data + wiring_.bulk_layout.offset(written_) : nullptr;
}

void VerbsBulk::Post(size_t bytes) {
  if (Stopped()) return;
  const uint64_t index = written_++;
  FD_CHECK(index - credit_ < wiring_.bulk_layout.segments(), "a bulk segment that the home has not freed");
  FD_CHECK(bytes > 0 && bytes <= wiring_.bulk_layout.segment_bytes_max(), "bulk segment size");
  const size_t offset = wiring_.bulk_layout.offset(index);
  const size_t trailer = index % wiring_.bulk_layout.segments() * kCacheLineBytes;
  StoreWord(wiring_.bulk_trailer.data + trailer, Tag(index + 1, wiring_.bulk.data + offset, bytes));
  pieces_[0].addr = wiring_.bulk.address + offset;
  pieces_[0].length = static_cast<uint32_t>(bytes);
  pieces_[1].addr = wiring_.bulk_trailer.address + trailer;
  request_.wr.rdma.remote_addr = wiring_.peer_bulk.address + offset;
  request_.wr_id = WrId(MessageKind::kBulk, 0, sends_.posted() + 1).bits();
  request_.imm_data = ImmData(MessageKind::kBulk, 0, index + 1).ToWire();
  request_.send_flags = IBV_SEND_SOLICITED;
  if (const int error = sends_.Post(&request_, &request_, 1); error != 0) {
    failed_ = true;
    liveness_->LoseByCall("ibv_post_send", error);
  }
}

// ---- The home's end ----

bool VerbsBulk::Next(const std::byte** segment, size_t* bytes) {
  if (given_ == arrived_ || Stopped()) return false;
  const std::byte* const data = wiring_.bulk.data + wiring_.bulk_layout.offset(given_);
  const size_t length = bytes_[given_ % kBulkSegmentsMax];
  BulkTrailer trailer;
  std::memcpy(&trailer, data + length, sizeof(trailer));
  if (trailer.tag != Tag(given_ + 1, data, length)) {
    Lose(wiring_.checksum ? "bulk segment checksum" : "a bulk segment is not the one that was announced");
    return false;
  }
  ++given_;
  *segment = data;
  *bytes = length;
  return true;
}

void VerbsBulk::Free() {
  if (Stopped()) return;
  FD_CHECK(freed_ < given_, "no bulk segment is held");
  ++freed_;
}

// ---- Completions ----

void VerbsBulk::TakeCompletion(const ibv_wc& completion) {
  if (completion.status != IBV_WC_SUCCESS) {
    failed_ = true;
    return liveness_->LoseByCompletion(completion);
  }
  if ((completion.opcode & IBV_WC_RECV) == 0) return sends_.Retire(completion);
  receives_.Use();
  if (completion.opcode != IBV_WC_RECV_RDMA_WITH_IMM || (completion.wc_flags & IBV_WC_WITH_IMM) == 0) {
    return Lose("a bulk segment that is no write with a notification");
  }
  const ImmData data = ImmData::FromWire(completion.imm_data);
  if (data.kind() != MessageKind::kBulk || !data.MatchesSequence(arrived_ + 1)) {
    return Lose("bulk segment out of sequence");
  }
  if (arrived_ - freed_ == wiring_.bulk_layout.segments()) return Lose("more bulk segments than were freed");
  if (completion.byte_len <= sizeof(BulkTrailer) ||
      completion.byte_len - sizeof(BulkTrailer) > wiring_.bulk_layout.segment_bytes_max()) {
    return Lose("bulk segment size");
  }
  bytes_[arrived_++ % kBulkSegmentsMax] = completion.byte_len - static_cast<uint32_t>(sizeof(BulkTrailer));
}

void VerbsBulk::PostReceives() {
  if (Stopped()) return;
  if (const int error = receives_.PostUsed(); error != 0) liveness_->LoseByCall("ibv_post_recv", error);
}

void VerbsBulk::Lose(const char* defect) {
  failed_ = true;
  liveness_->LoseByProtocol(defect, -1);
}

}  // namespace fastdecode
