#ifndef FASTDECODE_TESTS_ENGINE_PIPELINE_FAKE_SPART_H_
#define FASTDECODE_TESTS_ENGINE_PIPELINE_FAKE_SPART_H_

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/rpart/messages.h"
#include "engine/spart/spart.h"

namespace fastdecode {

// The S-Part of the fake model. Ends the process when the pipeline breaks a rule of SPart, or when an o row is not what
// belongs to that row: another's, stale, torn.
// Thread: as SPart. Allocates nothing after construction.
class FakeSPart final : public SPart {
 public:
  // `polls_max` > 0: asynchronous; a stage reads and writes only at a later PollStage, up to so many calls later.
  FakeSPart(const RPartShape& shape, int vocab, int polls_max, uint64_t seed);

  void StartStage(int micro_batch, int stage, StepTable& table) override;
  StageState PollStage(int micro_batch) override;
  void Park() override {}
  std::string Describe() const override { return "fake"; }
  uint64_t weight_bytes() const override { return 0; }

  // The next sampled rows come out as not a number, or otherwise than as a token.
  void SpoilLogits(int rows, SampleOutcome outcome = SampleOutcome::kBadLogits) {
    spoil_ = rows;
    spoiled_ = outcome;
  }
  // Called before every stage.
  void OnStage(std::function<void(int stage)> call) { on_stage_ = std::move(call); }
  // Called when rows of a layer are sent: for homes that attend within stages.
  void OnSent(std::function<void(int micro_batch, uint32_t layer, const StepTable& table)> call) {
    on_sent_ = std::move(call);
  }
  // The next stages fail.
  void FailStages(int count) { fail_ = count; }

 private:
  // What the table said when the step or stage began.
  struct TableCopy {
    void Take(const StepTable& table);
    bool SameRows(const StepTable& table) const;
    bool SameAreas(const StepTable& table) const;

    int rows = 0;
    int logit_rows = 0;
    std::vector<int32_t> tokens;
    std::vector<int32_t> positions;
    std::vector<uint16_t> homes;
    std::vector<uint32_t> home_rows;
    std::vector<HomeArea> areas;
  };
  struct Batch {
    int stage = -1;  // running or run last; -1: none yet
    bool running = false;
    int polls_left = 0;
    StepTable* table = nullptr;
    TableCopy copy;
    std::vector<uint64_t> residuals;  // [rows]
  };

  void CheckTable(const StepTable& table) const;
  void Compute(Batch& batch);
  void TakeO(Batch& batch, uint32_t layer);
  void WriteQkv(Batch& batch, uint32_t layer);
  void Sample(Batch& batch);
  SampleResult SampleAllowed(uint64_t residual, SampleArgs args);

  const RPartShape shape_;
  const int vocab_;
  const int polls_max_;
  std::mt19937_64 random_;
  std::vector<Batch> batches_;
  std::vector<float> logits_;  // [vocab]
  SampleScratch scratch_;
  int spoil_ = 0;
  SampleOutcome spoiled_ = SampleOutcome::kBadLogits;
  int fail_ = 0;
  std::function<void(int)> on_stage_ = [](int) {};
  std::function<void(int, uint32_t, const StepTable&)> on_sent_ = [](int, uint32_t, const StepTable&) {};
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ENGINE_PIPELINE_FAKE_SPART_H_
