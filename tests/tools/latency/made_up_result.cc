#include "tests/tools/latency/made_up_result.h"

#include <cmath>
#include <random>
#include <string>

namespace fastdecode {

namespace {

Phase MadeUpPhase(const std::string& name, const std::string& where, size_t count, uint64_t typical_ns) {
  Phase phase;
  phase.name = name;
  phase.where = where;
  phase.ns = Distribution(MadeUpSamples(count, typical_ns, typical_ns));
  phase.share = static_cast<double>(typical_ns) * 1e-6;
  return phase;
}

CriticalPath MadeUpPath() {
  CriticalPath path;
  path.tokens = 12'345;
  path.token_ns = 1'000'000;
  for (int place = 0; place < kPlaces; ++place) {
    const double mean_ns = 5'000.0 * (place + 1);
    path.parts.push_back({static_cast<Place>(place), mean_ns, mean_ns / path.token_ns,
                          place >= static_cast<int>(Place::kWire) && place <= static_cast<int>(Place::kTeam) ? 1 : -1});
    path.residual_ns -= mean_ns;
  }
  path.residual_ns += path.token_ns;
  path.wire_uncertain_ns = 1'250.5;
  return path;
}

HomeFigures MadeUpHome(int home, const std::string& name) {
  HomeFigures figures;
  figures.home = home;
  figures.name = name;
  figures.hops = 1000u + static_cast<size_t>(home);
  figures.last_share = 0.25 + 0.5 * home;
  figures.waited_for_ns = 12'000.5 * (1 + home);
  figures.busy_share = 0.5;
  figures.kv_share = 0.5;
  figures.gb_per_s = 31.25;
  figures.min_round_trip_ns = 4'321;
  figures.clock_offset_ns = -123'456'789;
  figures.clock_drift_ppm = -3.5;
  figures.clock_bound_ns = 2'000;
  return figures;
}

TokenStory MadeUpStory(uint64_t id) {
  TokenStory story;
  story.id = id;
  story.index = 17;
  story.step = 4'000'000'000;
  story.micro_batch = 1;
  story.start_ns = 5'000'000'000;
  story.end_ns = story.start_ns;
  for (size_t place = 0; place < kPlaces; ++place) {
    story.place_ns[place] = 10'000 * (place + id % 7);
    story.end_ns += story.place_ns[place];
  }
  story.longest = {{Place::kAttend, 2, 1, story.start_ns + 70'000, 60'000},
                   {Place::kScheduler, -1, -1, story.start_ns, 20'000}};
  return story;
}

RequestFigures MadeUpRequests(const std::string& start, size_t requests) {
  RequestFigures figures;
  figures.start = start;
  figures.requests = requests;
  figures.failed = 1;
  figures.unfinished = 3;
  figures.ttft_ns = Distribution(MadeUpSamples(requests, 40'000'000, 1), {41'000'000});
  figures.tpot_ns = Distribution(MadeUpSamples(requests, 1'100'000, 2));
  figures.itl_ns = Distribution(MadeUpSamples(requests * 50, 1'000'000, 3));
  // One has taken longer already than all that ended.
  figures.e2e_ns = Distribution(MadeUpSamples(requests, 90'000'000, 4), {3'600'000'000'000, 50'000'000, 95'000'000});
  return figures;
}

}  // namespace

std::vector<uint64_t> MadeUpSamples(size_t count, uint64_t typical_ns, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint64_t> samples(count);
  // The generator's numbers are the same everywhere, the library's distributions are not.
  for (uint64_t& ns : samples) {
    const double uniform = (static_cast<double>(random() >> 11) + 1) * 0x1p-53;
    ns = static_cast<uint64_t>(static_cast<double>(typical_ns) * std::pow(uniform, -0.2));
  }
  return samples;
}

LatencyResult MadeUpResult() {
  LatencyResult result;
  result.command = "step";
  result.provenance = {{"cpu", {{"model", "Some CPU 9000"}, {"microcode", "0x1"}}},
                       {"command_line", "fastdecode latency step --model " + std::string(kAwkward)}};
  result.engine = {{"layers", 22},
                   {"micro_batches", 2},
                   {"homes", {{{"index", 0}, {"name", "local"}}, {{"index", 1}, {"name", kAwkward}}}}};
  result.recording_cost = {{"share", 0.002}};
  result.start_ns = 5'000'000'000;
  result.end_ns = 15'000'000'000;
  result.events = 1'000'000;
  result.lost_events = 3;
  result.steps = 10'000;
  result.tokens = 12'345;
  result.phases = {MadeUpPhase("token", "engine", 12'345, 1'000'000),    MadeUpPhase("step", "engine", 10'000, 990'000),
                   MadeUpPhase("S-Part stage", "engine", 2'500, 20'000), MadeUpPhase("attend", "home 0", 700, 15'000),
                   MadeUpPhase("attend", "home 1", 12, 16'000),          MadeUpPhase("preempted", "engine", 0, 1)};
  result.phases[3].note = "upper bound: " + std::string(kAwkward);
  result.critical_path = MadeUpPath();
  result.s_busy = 0.75;
  result.r_busy = 0.5;
  result.overlap = 0.75;
  result.bubbles = {{"S-Part", "R late: home 1", 1.5e9, 0.15}, {"home 0", "S late", 1e9, 0.1}};
  result.homes = {MadeUpHome(0, "home 0 (local, home 0)"), MadeUpHome(1, kAwkward)};
  result.achieved = {{"KV read, home 0", 31.25, 45, "GB/s", kReadTest, "noted: " + std::string(kAwkward)},
                     {"GEMM, S-Part", 800, 0, "GFLOP/s", ""}};
  result.worst = {MadeUpStory(~uint64_t{0}), MadeUpStory(8)};
  result.requests = {MadeUpRequests("intended", 300), MadeUpRequests("submitted", 300)};
  result.slo = {{"ttft:400ms,p90", 4e8, 0.9, 5.5e7, true},
                {"tpot:1ms,p99.9", 1e6, 0.999, std::nullopt, false},
                {"e2e:1s,p99", 1e9, 0.99, 2.5e9, false, true}};
  Finding finding;
  finding.phase = "attend";
  finding.home = 1;
  finding.kind = "slower";
  finding.amount = 50'200;
  finding.unit = "ns";
  finding.cost_ns = 1.1e6;
  finding.line = "home 1: attend takes 50.2 us longer a hop than at the other homes, whatever it reads";
  result.findings = {finding, finding};
  result.findings[1].layer = 7;
  result.findings[1].home = -1;
  result.findings[1].line = kAwkward;
  result.interrupted = true;
  result.warnings = {"the machine took core 1 away for 12.3 ms", kAwkward};
  return result;
}

}  // namespace fastdecode
