#ifndef FASTDECODE_TOOLS_BENCH_SERVE_TARGET_H_
#define FASTDECODE_TOOLS_BENCH_SERVE_TARGET_H_

#include <cstdint>
#include <fastdecode/fastdecode.hpp>
#include <memory>
#include <string>
#include <vector>

#include "tools/bench/serve_prompts.h"
#include "tools/load/engine_load.h"
#include "tools/load/http_load.h"

namespace fastdecode::serve_bench {

// Who is asked.
class Target {
 public:
  virtual ~Target() = default;
  // Who that is, behind "at" or "in".
  virtual std::string Where() const = 0;
  virtual const std::string& model() const = 0;
  // The most tokens of one sequence; 0: not known.
  virtual int64_t MaxContext() const = 0;
  // The token ids that there are. Throws Error naming --vocab if nobody says.
  virtual IdRange FindIds() const = 0;
  // What the next runs send.
  virtual void Prepare(const RequestList& list, const PromptOptions& options) = 0;
  virtual load::LoadRun Run(const load::Pace& pace, const load::RunHooks& hooks) = 0;
};

// A server of the OpenAI completions API.
class ServerTarget : public Target {
 public:
  // `model`: its name in requests; empty: the first that the server has. Throws Error naming --model.
  ServerTarget(load::Server server, std::string model, bool keep_text);

  std::string Where() const override { return "at " + server_.url.Text(); }
  const std::string& model() const override { return model_; }
  int64_t MaxContext() const override { return max_context_; }
  IdRange FindIds() const override;
  void Prepare(const RequestList& list, const PromptOptions& options) override;
  load::LoadRun Run(const load::Pace& pace, const load::RunHooks& hooks) override;

 private:
  const load::Server server_;
  std::string model_;
  int64_t max_context_ = 0;
  load::HttpLoadOptions options_;
  std::vector<load::HttpRequest> requests_;
};

// An engine of this process.
class EngineTarget : public Target {
 public:
  EngineTarget(std::unique_ptr<InferenceEngine> engine, std::string model, bool keep_text);

  std::string Where() const override { return "in this process"; }
  const std::string& model() const override { return model_; }
  int64_t MaxContext() const override { return engine_->max_context(); }
  IdRange FindIds() const override { return {0, engine_->vocab_size() - 1}; }
  void Prepare(const RequestList& list, const PromptOptions& options) override;
  load::LoadRun Run(const load::Pace& pace, const load::RunHooks& hooks) override;

 private:
  const std::unique_ptr<InferenceEngine> engine_;
  const std::string model_;
  load::EngineLoadOptions options_;
  std::vector<GenerateRequest> requests_;
};

}  // namespace fastdecode::serve_bench

#endif  // FASTDECODE_TOOLS_BENCH_SERVE_TARGET_H_
