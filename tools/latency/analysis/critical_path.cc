#include "tools/latency/analysis/critical_path.h"

#include <algorithm>
#include <cstdint>
#include <unordered_map>

namespace fastdecode {

TokenTime::TokenTime(const Timeline& timeline) : by_home_(static_cast<size_t>(timeline.homes) + 1) {
  for (const StepTimes& step : timeline.steps) {
    if (!MakesTokens(step)) continue;
    const double weight = step.tokens;
    tokens_ += step.tokens;
    ns_ += weight * static_cast<double>(step.end_ns - step.start_ns);
    residual_ns_ += weight * static_cast<double>(step.residual_ns);
    for (uint32_t i = 0; i < step.segments; ++i) {
      const Segment& segment = timeline.segments[step.first_segment + i];
      by_home_[static_cast<size_t>(segment.home + 1)][static_cast<size_t>(segment.place)] +=
          weight * static_cast<double>(segment.end_ns - segment.start_ns);
    }
    for (uint32_t i = 0; i < step.hops; ++i) {
      const HopTimes& hop = timeline.hops[step.first_hop + i];
      if (hop.last) queue_uncertain_ns_ += weight * static_cast<double>(hop.queue_uncertain_ns);
    }
  }
}

double TokenTime::At(Place place, int home) const {
  const size_t index = static_cast<size_t>(home + 1);
  return index < by_home_.size() ? by_home_[index][static_cast<size_t>(place)] : 0;
}

double TokenTime::At(Place place) const {
  double ns = 0;
  for (const auto& places : by_home_) ns += places[static_cast<size_t>(place)];
  return ns;
}

CriticalPath DescribePath(const TokenTime& time, int homes) {
  CriticalPath path;
  path.tokens = time.tokens();
  if (path.tokens == 0) return path;
  const double tokens = static_cast<double>(path.tokens);
  path.token_ns = time.ns() / tokens;
  path.residual_ns = time.residual_ns() / tokens;
  path.wire_uncertain_ns = time.queue_uncertain_ns() / tokens;
  for (int i = 0; i < kPlaces; ++i) {
    CriticalPath::Part part;
    part.place = static_cast<Place>(i);
    const double ns = time.At(part.place);
    if (ns == 0) continue;
    part.mean_ns = ns / tokens;
    part.share = time.Share(ns);
    for (int home = 0; home < homes; ++home) {
      if (time.At(part.place, home) > time.At(part.place, part.home)) part.home = home;
    }
    path.parts.push_back(part);
  }
  return path;
}

namespace {

constexpr size_t kLongestMax = 5;

TokenStory Tell(const Timeline& timeline, const StepTimes& step) {
  TokenStory story;
  story.step = step.step;
  story.micro_batch = step.micro_batch;
  story.start_ns = step.start_ns;
  story.end_ns = step.end_ns;
  story.place_ns = step.place_ns;
  for (uint32_t i = 0; i < step.segments; ++i) {
    const Segment& segment = timeline.segments[step.first_segment + i];
    story.longest.push_back(
        {segment.place, segment.layer, segment.home, segment.start_ns, segment.end_ns - segment.start_ns});
  }
  const size_t kept = std::min(kLongestMax, story.longest.size());
  std::partial_sort(story.longest.begin(), story.longest.begin() + static_cast<ptrdiff_t>(kept), story.longest.end(),
                    [](const auto& a, const auto& b) { return a.ns != b.ns ? a.ns > b.ns : a.start_ns < b.start_ns; });
  story.longest.resize(kept);
  return story;
}

}  // namespace

std::vector<TokenStory> TellWorst(const Timeline& timeline, size_t count) {
  std::vector<uint32_t> steps;
  for (size_t i = 0; i < timeline.steps.size(); ++i) {
    if (MakesTokens(timeline.steps[i])) steps.push_back(static_cast<uint32_t>(i));
  }
  count = std::min(count, steps.size());
  const auto longer = [&timeline](uint32_t a, uint32_t b) {
    const StepTimes &one = timeline.steps[a], &other = timeline.steps[b];
    const uint64_t one_ns = one.end_ns - one.start_ns, other_ns = other.end_ns - other.start_ns;
    return one_ns != other_ns ? one_ns > other_ns : a < b;
  };
  std::partial_sort(steps.begin(), steps.begin() + static_cast<ptrdiff_t>(count), steps.end(), longer);
  steps.resize(count);
  std::unordered_map<uint32_t, const TokenTimes*> first_tokens;
  for (const uint32_t step : steps) first_tokens[step] = nullptr;
  for (const TokenTimes& token : timeline.tokens) {
    const auto wanted = first_tokens.find(token.step);
    // Token 0 of a sequence that has only joined is not one of those that waited for the whole step.
    if (wanted != first_tokens.end() && wanted->second == nullptr && token.index > 0) wanted->second = &token;
  }
  std::vector<TokenStory> stories;
  for (const uint32_t step : steps) {
    stories.push_back(Tell(timeline, timeline.steps[step]));
    const TokenTimes* token = first_tokens[step];
    if (token == nullptr) continue;
    stories.back().id = token->id;
    stories.back().index = token->index;
  }
  return stories;
}

}  // namespace fastdecode
