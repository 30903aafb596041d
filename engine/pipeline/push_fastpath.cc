// FAST PATH (docs/FAST_PATH.md)
// Prompts whose K and V are pushed to their homes while the S-Part's device computes them (decision 0018). Nothing here
// allocates, locks, logs or enters the kernel.
#include <algorithm>
#include <cstring>

#include "engine/pipeline/pipeline.h"

namespace fastdecode {

// Posts one segment at most, so that no turn takes long. False: there is none, or no home has room for it.
bool Pipeline::PushSegment() {
  const int count = static_cast<int>(batches_.size());
  for (int i = 0; i < count; ++i) {
    const int m = (turn_ + i) % count;
    MicroBatch& batch = batches_[m];
    for (size_t p = 0; p < batch.pushes.size(); ++p) {
      Push& push = batch.pushes[p];
      if (push.layer >= batch.push_layers || !PostSegment(m, &push)) continue;
      if (push.layer == options_.layers) {
        --push.sequence->push.chunks_open;
        batch.pushes.Erase(p);
      }
      return true;
    }
  }
  return false;
}

bool Pipeline::PostSegment(int m, Push* push) {
  Sequence* const sequence = push->sequence;
  HomePort& port = homes_[sequence->push.seat.home];
  if (!port.alive || !FlushPending(port)) return false;  // the reservation may be pending
  std::byte* const area = port.link->BulkArea();
  if (area == nullptr) return false;
  const size_t row_bytes = options_.shape.kv_row_bytes();
  const size_t tokens_max = (port.link->size().bulk_segment_bytes_max - kPushRowsOffset) / row_bytes;
  PushHeader header;
  header.sequence = sequence->push.seat.number;
  header.reservation = sequence->push.reservation;
  header.layer = static_cast<uint32_t>(push->layer);
  header.first_position = push->first_position + push->row;
  header.tokens = std::min(push->rows - push->row, static_cast<uint32_t>(tokens_max));
  const size_t bytes = header.tokens * row_bytes;
  std::memcpy(area, &header, sizeof(header));
  std::memcpy(area + kPushRowsOffset,
              device_home_->PushedRows(m, push->layer) + (push->first_row + push->row) * row_bytes, bytes);
  if (!HasOpen(port)) port.progress_seen_ns = Now();
  port.link->PostBulk(kPushRowsOffset + bytes);
  sequence->push.last_segment = ++port.segments;
  WakeHome(port);
  statistics_.pushed_bytes.Add(bytes);
  push->row += header.tokens;
  if (push->row == push->rows) {
    push->row = 0;
    ++push->layer;
  }
  return true;
}

// It leaves. What has been posted of it the home drops.
void Pipeline::DropPushes(int m, const Sequence& sequence) {
  FixedVector<Push>& pushes = batches_[m].pushes;
  for (size_t p = pushes.size(); p-- > 0;) {
    if (pushes[p].sequence == &sequence) pushes.Erase(p);
  }
}

// Those whose homes have stored all that was pushed live there from now on.
void Pipeline::SettlePushed(int m) {
  for (Sequence* sequence : batcher_.Members(m)) {
    if (!Batcher::AwaitsPush(*sequence) || sequence->push.chunks_open > 0) continue;
    const HomePort& port = homes_[sequence->push.seat.home];
    if (!port.alive || port.link->BulkFreed() < sequence->push.last_segment) continue;
    batcher_.Settle(sequence, &changes_);
  }
}

}  // namespace fastdecode
