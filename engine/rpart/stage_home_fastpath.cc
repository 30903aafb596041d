// FAST PATH (docs/FAST_PATH.md)
#include "engine/rpart/stage_home.h"
#include "numa/check.h"

namespace fastdecode {

void StageHome::Begin(int micro_batch, uint64_t step, int layer, uint32_t rows) {
  header_ = {};
  header_.step = step;
  header_.layer = static_cast<uint16_t>(layer);
  header_.micro_batch = static_cast<uint8_t>(micro_batch);
  header_.roster_version = session_->roster(micro_batch).version();
  header_.rows = rows;
  header_.payload_bytes = static_cast<uint32_t>(rows * shape_.hop_row_bytes());
  const char* const error = session_->BeginHop(header_, pair_->SendArea(micro_batch), pair_->ReceiveArea(micro_batch));
  // The engine that counts pages and names rows is the same program: it was wrong.
  FD_CHECK(error == nullptr, "a step that does not fit the home's books");
}

void StageHome::End() {
  FD_CHECK(session_->EndHop(header_) == nullptr, "a row that does not follow what is stored, or has no page");
}

}  // namespace fastdecode
