#include "tools/serve/health.h"

#include <algorithm>

namespace fastdecode::serve {

namespace {

double AgeSeconds(uint64_t then_ns, uint64_t now_ns) {
  return now_ns > then_ns ? static_cast<double>((now_ns - then_ns) / 1'000'000) * 1e-3 : 0;
}

}  // namespace

void Health::Look(const fd_engine* engine) {
  stats_.struct_size = sizeof(stats_);
  if (fd_engine_stats(engine, &stats_) != 0) return;
  if (stats_.requests_running == 0 && stats_.requests_waiting == 0) idle_ns_ = stats_.now_ns;
  homes_.clear();
  fd_home_stats home = {};
  home.struct_size = sizeof(home);
  while (fd_engine_home(engine, homes_.size(), &home) == 1) homes_.push_back(home);
}

uint64_t Health::StepAge() const {
  const uint64_t progress = std::max({idle_ns_, stats_.last_step_ns, stats_.created_ns});
  return stats_.now_ns > progress ? stats_.now_ns - progress : 0;
}

nlohmann::ordered_json Health::Report() const {
  nlohmann::ordered_json report = {{"status", stalled() ? "stalled" : "ok"},
                                   {"requests_running", stats_.requests_running},
                                   {"requests_waiting", stats_.requests_waiting},
                                   {"steps", stats_.steps}};
  report["last_step_age_s"] = nullptr;
  if (stats_.last_step_ns != 0) report["last_step_age_s"] = AgeSeconds(stats_.last_step_ns, stats_.now_ns);
  report["homes"] = nlohmann::ordered_json::array();
  for (const fd_home_stats& home : homes_) {
    nlohmann::ordered_json one = {{"name", home.name}, {"up", home.up != 0}, {"last_reply_age_s", nullptr}};
    if (home.last_reply_ns != 0) one["last_reply_age_s"] = AgeSeconds(home.last_reply_ns, stats_.now_ns);
    report["homes"].push_back(std::move(one));
  }
  if (stalled()) {
    report["reason"] = "requests wait, and no step has ended for " + std::to_string(StepAge() / 1'000'000'000) +
                       " s (--health-stall-s)";
  }
  return report;
}

}  // namespace fastdecode::serve
