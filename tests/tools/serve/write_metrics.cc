// write_metrics MODEL_NAME VERSION: makes the page of GET /metrics from what stdin says happened, for programs that
// others wrote to read. A line is one call, `page` writes the page and a form feed to stdout.
#include <cstdint>
#include <cstdio>
#include <deque>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tools/serve/metrics.h"

namespace fastdecode::serve {
namespace {

const std::map<std::string, uint64_t fd_stats::*> kStats = {{"requests_waiting", &fd_stats::requests_waiting},
                                                            {"requests_running", &fd_stats::requests_running},
                                                            {"choices_waiting", &fd_stats::choices_waiting},
                                                            {"choices_running", &fd_stats::choices_running},
                                                            {"prefix_tokens", &fd_stats::prefix_tokens},
                                                            {"cached_tokens", &fd_stats::cached_tokens},
                                                            {"kv_pages_cached", &fd_stats::kv_pages_cached},
                                                            {"prompt_tokens", &fd_stats::prompt_tokens},
                                                            {"generated_tokens", &fd_stats::generated_tokens},
                                                            {"preemptions", &fd_stats::preemptions},
                                                            {"recoveries", &fd_stats::recoveries},
                                                            {"recovered", &fd_stats::recovered},
                                                            {"steps", &fd_stats::steps},
                                                            {"rows", &fd_stats::rows},
                                                            {"s_busy_ns", &fd_stats::s_busy_ns},
                                                            {"kv_pages", &fd_stats::kv_pages},
                                                            {"kv_pages_used", &fd_stats::kv_pages_used},
                                                            {"now_ns", &fd_stats::now_ns},
                                                            {"created_ns", &fd_stats::created_ns},
                                                            {"last_step_ns", &fd_stats::last_step_ns}};

void ReadStepTimes(std::istream& in, fd_step_times* times) {
  in >> times->steps >> times->total_ns >> times->s_ns >> times->wait_ns >> times->home_ns >> times->wire_ns >>
      times->boundary_ns >> times->sampling_ns;
}

class Page {
 public:
  Page(const char* model_name, const char* version) : metrics_(model_name, version) {}

  // False: the line is none of these.
  bool Take(const std::string& line) {
    std::istringstream in(line);
    std::string what;
    in >> what;
    if (what == "page") {
      std::cout << metrics_.Text(gauges_) << "\f";
    } else if (what == "first_token") {
      double seconds = 0;
      in >> seconds;
      metrics_.OnFirstToken(seconds);
    } else if (what == "tokens") {
      uint64_t count = 0;
      double gap_s = 0;
      in >> count >> gap_s;
      metrics_.OnTokens(count, gap_s);
    } else if (what == "outcome") {
      RequestOutcome outcome;
      int finish = 0;
      in >> finish >> outcome.prompt_tokens >> outcome.generated_tokens >> outcome.longest_choice_tokens >>
          outcome.max_tokens >> outcome.choices >> outcome.queue_s >> outcome.prefill_s >> outcome.decode_s >>
          outcome.total_s >> outcome.per_output_token_s;
      outcome.finish = static_cast<RequestOutcome::Finish>(finish);
      metrics_.OnOutcome(outcome);
    } else if (what == "times") {
      fd_request_times times = {};
      times.struct_size = sizeof(times);
      in >> times.queue_ns;
      ReadStepTimes(in, &times.prefill);
      ReadStepTimes(in, &times.decode);
      metrics_.OnStepTimes(times);
    } else if (what == "response") {
      std::string route;
      int status = 0;
      double seconds = 0;
      in >> route >> status >> seconds;
      metrics_.OnResponse(route, status, seconds);
    } else if (what == "slow_client") {
      metrics_.OnSlowClient();
    } else if (what == "client_gone") {
      metrics_.OnClientGone();
    } else if (what == "stat") {
      std::string name;
      in >> name;
      const auto member = kStats.find(name);
      if (member == kStats.end()) return false;
      in >> gauges_.stats.*member->second;
    } else if (what == "home") {
      fd_home_stats home = {};
      in >> home.up >> home.hops >> home.work_ns >> home.last_reply_ns >> home.losses >> home.kv_pages >>
          home.kv_pages_used >> home.cached_tokens >> home.kv_pages_cached;
      names_.push_back(std::string(in.get() == ' ' ? "" : "?"));
      std::getline(in, names_.back());
      home.name = names_.back().c_str();
      gauges_.homes.push_back(home);
    } else if (what == "recovery") {
      double seconds = 0, queue_s = 0, detection_s = 0;
      in >> seconds >> queue_s >> detection_s;
      gauges_.recovery.Add(seconds);
      gauges_.recovery_queue.Add(queue_s);
      gauges_.loss_detection.Add(detection_s);
    } else if (what == "server") {
      Admission::Counts& waits = gauges_.admission;
      in >> gauges_.connections >> gauges_.streams >> waits.requests >> waits.tokens >> waits.refused_requests >>
          waits.refused_tokens >> gauges_.access_log_dropped >> gauges_.ready >> gauges_.front_cpu_s;
    } else {
      return false;
    }
    return !in.fail();
  }

 private:
  Metrics metrics_;
  Metrics::Gauges gauges_;
  std::deque<std::string> names_;  // of the homes
};

int Main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: write_metrics MODEL_NAME VERSION <CALLS\n");
    return 2;
  }
  Page page(argv[1], argv[2]);
  for (std::string line; std::getline(std::cin, line);) {
    if (page.Take(line)) continue;
    std::fprintf(stderr, "write_metrics: '%s' is no call\n", line.c_str());
    return 2;
  }
  return std::cout.flush() ? 0 : 1;
}

}  // namespace
}  // namespace fastdecode::serve

int main(int argc, char** argv) { return fastdecode::serve::Main(argc, argv); }
