#ifndef FASTDECODE_TOOLS_LOAD_ENGINE_LOAD_H_
#define FASTDECODE_TOOLS_LOAD_ENGINE_LOAD_H_

#include <cstdint>
#include <fastdecode/fastdecode_bench.hpp>
#include <string>
#include <unordered_map>

#include "tools/load/result.h"

namespace fastdecode::load {

// Where a load's requests come from, one by one.
class RequestSource {
 public:
  virtual ~RequestSource() = default;
  // Goes on to the next request: when it is to start, in seconds from the begin of the run. False: there are no more.
  virtual bool Next(double* arrival_s) = 0;
  // Makes the request that Next went on to. Not called for one that never starts, of which there may be many.
  virtual void Make(GenerateRequest* request) = 0;
};

struct EngineLoadOptions {
  bool open = false;    // each request starts at its time; else as another ends
  int concurrency = 1;  // the most that are in flight; 0: no limit, in an open loop
  // The load is there for something else to be measured: a request that the engine's queue has no room for is tried
  // again, and one that fails ends the load with an Error. Else both count as failed requests.
  bool is_background = false;
  bool fill = false;     // prompts get random KV instead of being computed
  bool keep_itl = true;  // RequestResult::itl_ns, 8 bytes a token
  bool keep_text = false;
};

// Sends requests to an engine of this process, and takes the events of all of them. Runs in this thread and starts
// none. Bounded: by what the source has, and what the engine's queue takes.
class EngineLoad {
 public:
  EngineLoad(InferenceEngine& engine, RequestSource& source, const EngineLoadOptions& options, const RunHooks& hooks);
  ~EngineLoad() { CancelRunning(); }
  EngineLoad(const EngineLoad&) = delete;
  EngineLoad& operator=(const EngineLoad&) = delete;

  // Until the source is empty and its requests have ended, or a hook ends it; then what still runs is cancelled. An
  // open load's results also have the requests that should have started by then and did not. Once. Throws Error as
  // is_background says.
  LoadRun Run();

 private:
  // Makes it ahead of its time, which is not to be spent on that.
  void FetchNext();
  int64_t NextStartNs() const;
  // Starts all that is to have started by now.
  void StartDue();
  // False: it is to be tried again.
  bool Submit();
  void SubmitNext(uint64_t* id);
  void Poll(int64_t until_ns);
  void TakeEvent(const fd_event& event, int64_t now_ns);
  void EndRequest(RequestResult* result, const std::string& error);
  void NoteNeverStarted();
  void CancelRunning();

  InferenceEngine& engine_;
  RequestSource& source_;
  const EngineLoadOptions options_;
  const RunHooks hooks_;

  LoadRun run_;
  std::unordered_map<uint64_t, size_t> running_;  // by id: which of the results
  GenerateRequest next_;
  double next_arrival_s_ = 0;
  bool has_next_ = false, is_over_ = false;
  bool queue_is_full_ = false;
  size_t ended_ = 0;
  std::string failure_;  // what ends a load in the background
};

}  // namespace fastdecode::load

#endif  // FASTDECODE_TOOLS_LOAD_ENGINE_LOAD_H_
