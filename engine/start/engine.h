#ifndef FASTDECODE_ENGINE_START_ENGINE_H_
#define FASTDECODE_ENGINE_START_ENGINE_H_

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/homes/homes.h"
#include "engine/model/model_spec.h"
#include "engine/pipeline/pipeline.h"
#include "engine/record/record_reader.h"
#include "engine/record/record_server.h"
#include "engine/record/recorder.h"
#include "engine/request/build_request.h"
#include "engine/request/request_desk.h"
#include "engine/rpart/rpart_shape.h"
#include "engine/schedule/calibration.h"
#include "engine/spart/spart.h"
#include "engine/start/choices.h"
#include "engine/start/load_spart.h"
#include "engine/start/load_text.h"
#include "engine/start/options.h"
#include "engine/start/start_plan.h"
#include "engine/start/statistics_snapshot.h"
#include "engine/text/chat/chat_template.h"
#include "engine/text/tokenizer.h"
#include "kernels/isa.h"
#include "numa/core_plan.h"
#include "numa/log.h"
#include "numa/parker.h"
#include "numa/topology.h"

namespace fastdecode {

// What an engine has counted since it was made, and what it has now.
struct EngineCounts {
  DeskStatistics desk;
  uint64_t running = 0;          // of desk.running those that are in steps
  uint64_t running_answers = 0;  // of desk.running_answers the same
  uint32_t homes = 0, homes_up = 0;
  uint64_t preemptions = 0, steps = 0, rows = 0, hops = 0, s_busy_ns = 0;
  uint64_t recoveries = 0, recovered = 0;
  uint64_t prefix_tokens = 0, cached_tokens = 0;
  uint64_t kv_pages = 0, kv_pages_used = 0, kv_pages_cached = 0;  // of homes that are up
  uint64_t now_ns = 0, created_ns = 0, last_step_ns = 0;
};

// The same of one home.
struct EngineHomeCounts {
  const char* name = nullptr;  // lives as long as the engine
  bool up = false;
  uint64_t hops = 0, work_ns = 0, last_reply_ns = 0, losses = 0, cached_tokens = 0;
  uint64_t kv_pages = 0, kv_pages_used = 0, kv_pages_cached = 0;  // 0 while it is not up
};

// One model being served: what the C interface's fd_engine is.
// Owns: tokenizer, S-Part, homes of this process and links to others, pipeline, desk; ends them in the right order.
// Thread: any.
class Engine {
 public:
  // The start as a list of steps; an error says which file, option or worker is at fault, and nothing stays behind.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const Options& options);
  ~Engine();

  absl::Status Submit(const RequestFields& request, uint64_t* id);
  // The ids of a prompt in parts.
  absl::StatusOr<std::vector<int32_t>> Tokenize(std::span<const RequestFields::Part> parts,
                                                bool add_special_tokens) const;
  RequestDesk& desk() { return *desk_; }

  const ModelSpec& spec() const { return spec_; }
  int max_context() const { return static_cast<int>(plan_.shape.max_context); }
  uint32_t max_answers() const { return Context().answers_max; }  // of one request
  const Tokenizer* tokenizer() const { return text_.tokenizer.get(); }
  const std::string& tokenizer_missing_reason() const { return text_.tokenizer_missing_reason; }
  const ChatTemplate* chat_template() const { return text_.chat_template.get(); }  // null: there is none, because...
  const std::string& chat_template_missing_reason() const { return text_.chat_template_missing_reason; }

  std::string Describe() const;
  std::string StatisticsJson() const;
  // Since it was created. Any thread.
  const PipelineStatistics& statistics() const { return pipeline_->statistics(); }
  EngineCounts Counts() const;
  size_t home_count() const { return homes_->count(); }
  EngineHomeCounts CountsOfHome(size_t home) const;  // REQUIRES: home < home_count()
  const std::vector<int>& front_cores() const { return cores_.plan.front_cores; }
  // The model and its tokenizer, as JSON.
  std::string DescribeModel() const;
  // What the homes said last of their pages.
  std::string PagesJson() const;
  // A reader of what this engine records; closed before the engine ends.
  std::unique_ptr<RecordReader> OpenRecord() const;
  void ResetStatistics();

 private:
  explicit Engine(const Options& options);
  absl::Status Start();
  RequestContext Context() const;
  // The plan of cores, and with it the number of micro-batches.
  absl::Status ChooseCores(const Topology& topology, const std::vector<Endpoint>& endpoints, bool gpu);
  absl::Status PlanCoresFor(const Topology& topology, size_t local_homes);
  std::string DescribeCorePlan() const;
  std::string DescribeFront() const;
  void DescribeMachine(const Topology& topology);
  absl::Status ConnectHomes(std::vector<Endpoint> endpoints, PollMode poll);
  absl::Status LoadModel(const ModelFiles& files, const Topology& topology, std::unique_ptr<SPartDevice> device,
                         PollMode poll);
  absl::Status CheckKvBudget(uint64_t pages) const;
  absl::Status StartRecordServer();
  void StartPipeline(PollMode poll);
  nlohmann::json DescribeRecord() const;
  nlohmann::json DescribeKind() const;  // what step costs depend on
  absl::Status TakeCalibration();

  Options options_;  // micro_batches: as chosen, from Start on
  mutable Logger log_;
  ModelSpec spec_;
  StartPlan plan_;
  std::optional<Calibration> calibration_;
  CoreChoice core_choice_;
  ReservedCorePlan cores_;
  int engine_node_ = -1;  // NUMA node of the S-Part
  std::string machine_;   // what was found at start, for Describe
  TextParts text_;
  mutable std::atomic<bool> warned_of_bos_ = false;
  uint64_t created_ns_ = 0;
  ParkWord desk_word_;

  // In order of construction; destroyed backwards.
  std::unique_ptr<Recorder> recorder_;
  std::unique_ptr<SPart> spart_;
  std::unique_ptr<Homes> homes_;
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<RequestDesk> desk_;
  std::unique_ptr<RecordServer> record_server_;

  mutable std::mutex statistics_mutex_;
  StatisticsSnapshot baseline_;  // at the last reset
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_START_ENGINE_H_
