// A home that has more of the KV than the others, although some of it could be elsewhere.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tools/latency/analysis/home_losses.h"
#include "tools/latency/findings/finders.h"
#include "tools/latency/findings/robust.h"

namespace fastdecode {

namespace {

// Sequences come and go, and homes are never quite even.
constexpr double kUnbalancedMin = 1.25;
// It has to be so all the time: in three of four blocks by at least this.
constexpr double kUnbalancedMostly = 1.15;
constexpr double kMostlyShare = 0.75;
// Where sequences joined meanwhile, at least this share of those at the home did so although it had more than the mean:
// if others left and nobody came, nobody was placed wrongly.
constexpr size_t kJoinsMin = 3;
constexpr double kWrongShare = 0.5;
// Where none did, in each step the home must have so many sequences more than the one with the least: fewer cannot be
// spread more evenly.
constexpr double kSequencesTooMany = 1.5;

// Means of a step with all homes there.
struct Load {
  double kv_bytes = 0;
  double sequences = 0;
  std::vector<double> block_kv_bytes;
};

std::vector<Load> MeasureLoads(const Evidence& evidence, const std::vector<HomeLoss>& losses) {
  const auto homes = static_cast<size_t>(evidence.timeline.homes);
  std::vector<Load> loads(homes);
  std::vector<const StepTimes*> whole = evidence.decode_steps();
  std::erase_if(whole, [&losses](const StepTimes* step) { return SomeHomeIsAway(losses, step->end_ns); });
  const auto steps = static_cast<double>(whole.size());
  for (Load& load : loads) load.block_kv_bytes.assign(static_cast<size_t>(evidence.blocks()), 0);
  for (const StepTimes* step : whole) {
    const auto block = static_cast<size_t>(evidence.BlockOf(step->end_ns));
    for (size_t h = 0; h < homes && h < step->kv_bytes.size(); ++h) {
      const double bytes = static_cast<double>(step->kv_bytes[h]) / steps;
      loads[h].kv_bytes += bytes;
      loads[h].block_kv_bytes[block] += bytes;
      loads[h].sequences += step->home_rows[h] / steps;
    }
  }
  return loads;
}

bool MostlyMore(const std::vector<Load>& loads, const Load& load) {
  size_t more = 0, all = 0;
  for (size_t block = 0; block < load.block_kv_bytes.size(); ++block) {
    double sum = 0;
    for (const Load& other : loads) sum += other.block_kv_bytes[block];
    if (sum <= 0) continue;
    ++all;
    more += load.block_kv_bytes[block] * static_cast<double>(loads.size()) > kUnbalancedMostly * sum;
  }
  return static_cast<double>(more) >= kMostlyShare * static_cast<double>(all);
}

// Of the sequences that joined at each home: how many, and how many of them although the home had more than the mean
// already.
struct Joins {
  size_t all = 0, wrong = 0;
};

// Follows the KV of all homes through a recording.
class JoinJudge {
 public:
  // Those who joined while a home was away had no choice.
  JoinJudge(size_t homes, const std::vector<HomeLoss>& losses) : losses_(losses), joins_(homes) {}

  void See(const fd_record_event& event) {
    MicroBatch& batch = batches_[event.micro_batch];
    batch.next_kv_bytes.resize(joins_.size(), 0);
    const bool at_home = event.home >= 0 && static_cast<size_t>(event.home) < joins_.size();
    if (event.kind == FD_RECORD_JOIN && at_home) batch.joined.push_back(event);
    if (event.kind == FD_RECORD_SHARE && at_home) {
      batch.next_kv_bytes[static_cast<size_t>(event.home)] = static_cast<double>(event.bytes);
      if (event.count > 0) token_bytes_ = static_cast<double>(event.bytes) / event.count;
    }
    if (event.kind == FD_RECORD_COMPOSE) batch.sequences = event.count;
    // An empty micro-batch takes no step that would say so.
    if (event.kind == FD_RECORD_LEAVE && batch.sequences > 0 && --batch.sequences == 0) batch.kv_bytes.clear();
    if (event.kind == FD_RECORD_STAGE && event.layer == 0) Settle(&batch);
  }
  const std::vector<Joins>& joins() const { return joins_; }

 private:
  struct MicroBatch {
    std::vector<double> kv_bytes, next_kv_bytes;  // [homes] of its step, and of the one that is put together
    std::vector<fd_record_event> joined;
    uint32_t sequences = 0;
  };

  // All homes' shares of the new step are known. Who joined is in them already, and who left is not.
  void Settle(MicroBatch* batch) {
    batch->kv_bytes = std::exchange(batch->next_kv_bytes, std::vector<double>(joins_.size(), 0));
    std::vector<double> before(joins_.size(), 0);
    for (const auto& [index, other] : batches_) {
      for (size_t h = 0; h < joins_.size() && h < other.kv_bytes.size(); ++h) before[h] += other.kv_bytes[h];
    }
    const auto bytes_of = [this](const fd_record_event& join) { return token_bytes_ * join.rows; };
    for (const fd_record_event& join : batch->joined) before[static_cast<size_t>(join.home)] -= bytes_of(join);
    for (const fd_record_event& join : batch->joined) {
      const auto home = static_cast<size_t>(join.home);
      double sum = 0;
      for (const double bytes : before) sum += bytes;
      if (!SomeHomeIsAway(losses_, join.end_ns)) {
        ++joins_[home].all;
        joins_[home].wrong += before[home] * static_cast<double>(joins_.size()) > sum;
      }
      before[home] += bytes_of(join);
    }
    batch->joined.clear();
  }

  const std::vector<HomeLoss>& losses_;
  std::vector<Joins> joins_;
  std::map<int, MicroBatch> batches_;
  double token_bytes_ = 0;
};

// What the home's hops take beyond those of a home with the mean KV.
double ExcessNs(const Evidence& evidence, int home, double ratio) {
  std::vector<double> attend_ns;
  evidence.VisitHops(home,
                     [&attend_ns](const HopTimes& hop) { attend_ns.push_back(static_cast<double>(hop.attend_ns)); });
  return Median(std::move(attend_ns)) * (1 - 1 / ratio);
}

}  // namespace

std::vector<Finding> FindUnbalancedPlacement(const Evidence& evidence) {
  std::vector<Finding> findings;
  if (!evidence.long_enough() || evidence.timeline.homes < 2) return findings;
  const std::vector<HomeLoss> losses = FindHomeLosses(evidence.recording);
  const std::vector<Load> loads = MeasureLoads(evidence, losses);
  double mean_bytes = 0, least_bytes = loads[0].kv_bytes;
  for (const Load& load : loads) {
    mean_bytes += load.kv_bytes / static_cast<double>(loads.size());
    least_bytes = std::min(least_bytes, load.kv_bytes);
  }
  JoinJudge judge(loads.size(), losses);
  for (const fd_record_event& event : evidence.recording.events) judge.See(event);
  for (size_t h = 0; h < loads.size(); ++h) {
    const Load& load = loads[h];
    if (mean_bytes <= 0 || load.kv_bytes < kUnbalancedMin * mean_bytes || !MostlyMore(loads, load)) continue;
    const Joins& joins = judge.joins()[h];
    // A home that has come back is empty, and nobody was placed wrongly for that.
    const bool wrong =
        joins.all >= kJoinsMin
            ? static_cast<double>(joins.wrong) >= kWrongShare * static_cast<double>(joins.all)
            : losses.empty() && load.kv_bytes - least_bytes >= kSequencesTooMany * load.kv_bytes / load.sequences;
    if (!wrong) continue;
    Finding finding;
    finding.phase = "placement";
    finding.home = static_cast<int>(h);
    finding.kind = "unbalanced";
    finding.amount = load.kv_bytes / mean_bytes;
    finding.unit = "ratio";
    finding.cost_ns = evidence.CostOfHome(finding.home, ExcessNs(evidence, finding.home, finding.amount));
    char text[160];
    std::snprintf(text, sizeof(text),
                  ": by its placement it has %.2f times the KV of the mean home (%.2f MB of a layer in each step "
                  "against %.2f MB; ",
                  finding.amount, load.kv_bytes * 1e-6, mean_bytes * 1e-6);
    finding.line = evidence.recording.HomeName(finding.home) + text + CostText(finding.cost_ns) + ")";
    findings.push_back(finding);
  }
  return findings;
}

}  // namespace fastdecode
