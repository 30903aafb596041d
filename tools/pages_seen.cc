#include "tools/pages_seen.h"

#include <cstdio>

#include "nlohmann/json.hpp"
#include "numa/clock.h"

namespace fastdecode {

namespace {
constexpr uint64_t kBetweenLooksNs = 20'000'000;
}  // namespace

void PagesSeen::Look() {
  if (looked_ns_ != 0 && NowNs() - looked_ns_ < kBetweenLooksNs) return;
  const nlohmann::json said = nlohmann::json::parse(engine_.PagesJson());
  for (const nlohmann::json& home : said) {
    const auto number = [&](const char* name) { return home.at(name).get<unsigned long long>(); };
    const Pages pages = {number("pages"), number("pages_used"), number("pages_free"), number("pages_held")};
    const auto [seen, is_first] = fullest_.try_emplace(home.at("index").get<int>(), pages);
    if (!is_first && pages.used > seen->second.used) seen->second = pages;
  }
  looked_ns_ = NowNs();
}

std::string PagesSeen::Text() const {
  std::string text;
  for (const auto& [home, pages] : fullest_) {
    char line[160];
    if (pages.used == 0) {
      std::snprintf(line, sizeof(line), "KV pages at home %d: %llu; all free whenever it counted\n", home, pages.all);
      text += line;
      continue;
    }
    std::snprintf(line, sizeof(line),
                  "KV pages at home %d: %llu; when fullest %llu used, %llu free, runs held %llu unused\n", home,
                  pages.all, pages.used, pages.free, pages.held);
    text += line;
  }
  return text;
}

}  // namespace fastdecode
