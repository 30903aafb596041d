#include "tests/engine/pipeline/fake_spart.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "engine/pipeline/statistics.h"
#include "numa/check.h"
#include "tests/engine/pipeline/fake_model.h"

namespace fastdecode {

FakeSPart::FakeSPart(const RPartShape& shape, int vocab, int polls_max, uint64_t seed)
    : shape_(shape),
      vocab_(vocab),
      polls_max_(polls_max),
      random_(seed),
      batches_(shape.micro_batches),
      logits_(static_cast<size_t>(vocab)),
      scratch_(vocab) {
  for (Batch& batch : batches_) {
    batch.residuals.resize(shape.max_rows);
    batch.copy.tokens.resize(shape.max_rows);
    batch.copy.positions.resize(shape.max_rows);
    batch.copy.homes.resize(shape.max_rows);
    batch.copy.home_rows.resize(shape.max_rows);
    batch.copy.areas.resize(kMaxHomes);
  }
}

void FakeSPart::TableCopy::Take(const StepTable& table) {
  rows = table.rows;
  logit_rows = table.logit_rows;
  std::copy_n(table.tokens.begin(), rows, tokens.begin());
  std::copy_n(table.positions.begin(), rows, positions.begin());
  std::copy_n(table.homes.begin(), rows, homes.begin());
  std::copy_n(table.home_rows.begin(), rows, home_rows.begin());
  std::copy(table.home_areas.begin(), table.home_areas.end(), areas.begin());
}

bool FakeSPart::TableCopy::SameRows(const StepTable& table) const {
  return rows == table.rows && logit_rows == table.logit_rows &&
         std::equal(tokens.begin(), tokens.begin() + rows, table.tokens.begin()) &&
         std::equal(positions.begin(), positions.begin() + rows, table.positions.begin()) &&
         std::equal(homes.begin(), homes.begin() + rows, table.homes.begin()) &&
         std::equal(home_rows.begin(), home_rows.begin() + rows, table.home_rows.begin());
}

// Of the homes that have rows: others may come at any time.
bool FakeSPart::TableCopy::SameAreas(const StepTable& table) const {
  return std::all_of(homes.begin(), homes.begin() + rows, [&](uint16_t home) {
    return areas[home].send == table.home_areas[home].send && areas[home].receive == table.home_areas[home].receive;
  });
}

void FakeSPart::CheckTable(const StepTable& table) const {
  FD_CHECK(table.rows > 0 && table.rows <= static_cast<int>(shape_.max_rows), "a step without rows, or with too many");
  std::array<uint32_t, kMaxHomes> next_row{};
  for (int row = 0; row < table.rows; ++row) {
    FD_CHECK(table.homes[row] < kMaxHomes, "a row without a home");
    FD_CHECK(table.home_rows[row] == next_row[table.homes[row]]++, "a home's rows are not packed in order");
    FD_CHECK(table.tokens[row] >= 0 && table.tokens[row] < vocab_, "no token");
  }
  FD_CHECK(table.logit_rows <= static_cast<int>(shape_.max_rows), "more rows of logits than a step has rows");
  for (int i = 0; i < table.logit_rows; ++i) {
    const LogitRow& logit = table.logits[i];
    FD_CHECK(logit.row < static_cast<uint32_t>(table.rows), "logits of a row past the end");
    FD_CHECK(i == 0 || table.logits[i - 1].row <= logit.row, "logit rows are not ascending");
    FD_CHECK(logit.sample || logit.logits_out != nullptr, "logits that nobody wants");
    FD_CHECK(!logit.sample || logit.args.position == static_cast<uint64_t>(table.positions[logit.row]) + 1,
             "the token to sample is not the one after its row");
    FD_CHECK(!logit.sample || (logit.args.vocab == vocab_ && logit.args.params != nullptr),
             "sampling without its parameters");
  }
}

void FakeSPart::StartStage(int micro_batch, int stage, StepTable& table) {
  on_stage_(stage);
  Batch& batch = batches_[micro_batch];
  FD_CHECK(!batch.running, "a stage started before the last one was done");
  const int last = static_cast<int>(shape_.layers);
  FD_CHECK(stage == 0 ? (batch.stage == -1 || batch.stage == last) : stage == batch.stage + 1, "stages out of order");
  CheckTable(table);
  FD_CHECK(stage == 0 || batch.copy.SameRows(table), "the rows changed within a step");
  batch.copy.Take(table);
  batch.stage = stage;
  batch.table = &table;
  batch.running = true;
  if (polls_max_ > 0) {
    batch.polls_left = static_cast<int>(random_() % static_cast<uint64_t>(polls_max_ + 1));
    return;
  }
  batch.polls_left = 0;
  Compute(batch);
}

StageState FakeSPart::PollStage(int micro_batch) {
  Batch& batch = batches_[micro_batch];
  FD_CHECK(batch.running, "asked for a stage that was not started");
  if (batch.polls_left-- > 0) return StageState::kRunning;
  if (polls_max_ > 0) {
    FD_CHECK(batch.copy.SameRows(*batch.table) && batch.copy.SameAreas(*batch.table),
             "the table changed under a stage");
    Compute(batch);
  }
  batch.running = false;
  if (fail_ > 0) {
    --fail_;
    batch.stage = -1;
    return StageState::kFailed;
  }
  return StageState::kDone;
}

void FakeSPart::Compute(Batch& batch) {
  const uint32_t stage = static_cast<uint32_t>(batch.stage);
  if (stage == 0) {
    for (int row = 0; row < batch.table->rows; ++row) {
      batch.residuals[row] = Embed(batch.table->tokens[row], static_cast<uint32_t>(batch.table->positions[row]));
    }
  } else {
    TakeO(batch, stage - 1);
  }
  if (stage < shape_.layers) {
    WriteQkv(batch, stage);
    on_sent_(static_cast<int>(&batch - batches_.data()), stage, *batch.table);
  } else {
    Sample(batch);
  }
}

void FakeSPart::TakeO(Batch& batch, uint32_t layer) {
  const StepTable& table = *batch.table;
  for (int row = 0; row < table.rows; ++row) {
    uint64_t o = 0;  // of a lost home, or of a row that failed there
    if (const std::byte* receive = table.home_areas[table.homes[row]].receive) {
      FakeCell cell;
      std::memcpy(static_cast<void*>(&cell), receive + table.home_rows[row] * shape_.reply_row_bytes(), sizeof(cell));
      static constexpr char kZeros[sizeof(FakeCell)] = {};
      if (std::memcmp(&cell, kZeros, sizeof(cell)) != 0) {
        FD_CHECK(cell.Sound() && cell.kind == CellKind::kO, "o is stale or torn");
        FD_CHECK(cell.token == table.tokens[row] && cell.position == static_cast<uint32_t>(table.positions[row]),
                 "o of another row");
        FD_CHECK(cell.layer == layer, "o of another layer");
        o = cell.value;
      }
    }
    batch.residuals[row] = NextResidual(batch.residuals[row], o);
  }
}

void FakeSPart::WriteQkv(Batch& batch, uint32_t layer) {
  const StepTable& table = *batch.table;
  for (int row = 0; row < table.rows; ++row) {
    std::byte* const send = table.home_areas[table.homes[row]].send;
    if (send == nullptr) continue;
    std::byte* out = send + table.home_rows[row] * shape_.hop_row_bytes();
    for (const CellKind kind : {CellKind::kQ, CellKind::kK, CellKind::kV}) {
      const FakeCell cell = FakeCell::Make(kind, table.tokens[row], static_cast<uint32_t>(table.positions[row]), layer,
                                           CellValue(kind, batch.residuals[row], layer));
      std::memcpy(out, &cell, sizeof(cell));
      out += sizeof(cell);
    }
  }
}

// Of the logits that it shows, as a real S-Part does.
SampleResult FakeSPart::SampleAllowed(uint64_t residual, SampleArgs args) {
  for (int token = 0; token < vocab_; ++token) logits_[static_cast<size_t>(token)] = LogitOf(residual, token);
  args.logits = logits_.data();
  args.scratch = &scratch_;
  return fastdecode::Sample(args);
}

void FakeSPart::Sample(Batch& batch) {
  StepTable& table = *batch.table;
  for (int i = 0; i < table.logit_rows; ++i) {
    LogitRow& logit = table.logits[i];
    const uint64_t residual = batch.residuals[logit.row];
    if (logit.logits_out != nullptr) {
      for (int token = 0; token < vocab_; ++token) logit.logits_out[token] = LogitOf(residual, token);
    }
    if (!logit.sample) continue;
    if (!logit.args.allowed.empty()) {
      logit.result = SampleAllowed(residual, logit.args);
    } else {
      logit.result = SampleResult{SampleOutcome::kToken,
                                  TokenOf(residual, logit.args.params->seed, vocab_, logit.args.banned), -1.0f, 0};
    }
    if (spoil_ > 0) {
      --spoil_;
      logit.result = SampleResult{spoiled_, -1, 0, 0};
    }
  }
}

}  // namespace fastdecode
