// Templates that would not end, and what errors say.
#include <gtest/gtest.h>
#include <time.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/text/jinja/formatting.h"
#include "engine/text/jinja/template.h"

namespace fastdecode::jinja {
namespace {

absl::StatusOr<Text> RenderTemplate(const std::string& source, const Limits& limits = {}) {
  const auto parsed = Template::Parse("f.jinja", source);
  if (!parsed.ok()) return parsed.status();
  return (*parsed)->Render(Dict(), 0, limits);
}

double CpuSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

std::string Repeated(const std::string& text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

// Each would take hours, or all memory.
std::vector<std::string> Bombs() {
  const std::string grow_list =
      "{% set n = namespace(s=[1]) %}{% for i in range(150) %}{% set n.s = [n.s, n.s] %}{% endfor %}";
  const std::string grow_tuple =
      "{% set n = namespace(s=(1,)) %}{% for i in range(150) %}{% set n.s = (n.s, n.s) %}{% endfor %}";
  const std::string ten_mb = "{% set s = 'x' * 10000000 %}{% for i in range(100000) %}";
  return {
      "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
      "{% set n = namespace(s='x') %}{% for i in range(100) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
      "{{ 'x' * 10**30 }}",
      grow_list + "{{ n.s }}",
      grow_list + "{{ n.s|tojson }}",
      grow_list + "{{ n.s == n.s|list }}",
      grow_tuple + "{{ {n.s: 1} }}",
      grow_tuple + "{{ n.s < n.s }}",
      "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
      "{% set n = namespace(s=[]) %}{% for i in range(100000) %}{% set n.s = [n.s] %}{% endfor %}",
      "{{ 'x'.ljust(10**12) }}",
      "{{ range(100000)|list|join('x' * 1000000) }}",
      "{{ ('x\n' * 100000)|indent(60000) }}",
      "{{ [1]|batch(10**15, 'x')|list }}",
      "{% for i in range(100000) %}{{ ('x' * 1000000).count('xx') }}{% endfor %}",
      "{% for i in range(100000) %}{{ range(1000)|select('in', range(1000))|list|length }}{% endfor %}",
      ten_mb + "{{ s == s ~ '' }}{% endfor %}",
      ten_mb + "{{ s.islower() }}{{ s is lower }}{{ s.isalpha() }}{% endfor %}",
      ten_mb + "{{ s|title|length }}{% endfor %}",
      ten_mb + "{{ s|int }}{{ s|wordcount }}{% endfor %}",
      ten_mb + "{{ {}.get(s) }}{% endfor %}",
      "{% set d = '.' * 3000000 ~ 'x' %}{{ ('x' * 3000000).strip(d) }}",
  };
}

TEST(JinjaLimits, BombsEndWithAnErrorSoon) {
  for (const std::string& bomb : Bombs()) {
    const double begin = CpuSeconds();
    const absl::StatusOr<Text> text = RenderTemplate(bomb);
    const double seconds = CpuSeconds() - begin;
    EXPECT_EQ(text.status().code(), absl::StatusCode::kResourceExhausted) << bomb.substr(0, 200) << "\n"
                                                                          << text.status();
    // The limit is half a second; what one operation takes beyond it is more with sanitizers.
    EXPECT_LT(seconds, 10) << bomb.substr(0, 200);
  }
}

TEST(JinjaLimits, DeepTemplatesAreNoTemplates) {
  for (const std::string& source :
       {"{{ " + Repeated("(", 5000) + "1" + Repeated(")", 5000) + " }}", "{{ " + Repeated("not ", 5000) + "1 }}",
        "{{ " + Repeated("-", 5000) + "1 }}", "{{ " + Repeated("[", 5000) + Repeated("]", 5000) + " }}",
        Repeated("{% if 1 %}", 5000) + Repeated("{% endif %}", 5000), "{{ 1" + Repeated(" if 1 else 1", 5000) + " }}",
        "{{ 1" + Repeated("+1", 1000000) + " }}", "{{ a" + Repeated("|trim", 500000) + " }}",
        "{{ a" + Repeated(".b", 1000000) + " }}", "{{ 1" + Repeated(" or 1", 500000) + " }}",
        "{{ f" + Repeated("()", 1000000) + " }}"}) {
    EXPECT_EQ(RenderTemplate(source).status().code(), absl::StatusCode::kInvalidArgument) << source.substr(0, 40);
  }
}

TEST(JinjaLimits, EachLimitIsTheOneThatIsSet) {
  constexpr uint64_t kLongNs = 600'000'000'000;
  const auto message = [](const std::string& source, const Limits& limits) {
    return std::string(RenderTemplate(source, limits).status().message());
  };
  EXPECT_EQ(message("{% for i in range(99999) %}{% endfor %}", {.steps = 5000, .cpu_ns = kLongNs}),
            "f.jinja:1:4: rendering takes more than 5000 steps");
  EXPECT_EQ(message("{{ 'x' * 3000000 }}", {.output_bytes = 2 << 20, .cpu_ns = kLongNs}),
            "f.jinja:1:4: rendering takes more than 2 MiB in one value");
  EXPECT_EQ(
      message("{% for i in range(9) %}{{ ('x' * 1000000)|length }}{% endfor %}", {.bytes = 4 << 20, .cpu_ns = kLongNs}),
      "f.jinja:1:28: rendering takes more than 4 MiB of memory");
  EXPECT_EQ(message("{{ ((1)) + 1 + 1 + 1 + 1 + 1 + 1 }}", {.depth = 5, .cpu_ns = kLongNs}),
            "f.jinja:1:4: rendering takes more than 5 levels of expressions, blocks and calls");
  EXPECT_NE(message("{% for i in range(99999) %}{{ 'x' * 10000 }}{% endfor %}", {.cpu_ns = 0}).find("0 ms of CPU time"),
            std::string::npos);
}

TEST(JinjaLimits, ErrorsNameFileLineAndColumn) {
  const std::pair<const char*, const char*> cases[] = {
      {"a\n{{ nosuch.x }}", "f.jinja:2:10: 'nosuch' is undefined"},
      {"{{ 1 +\n  'a' }}", "f.jinja:1:4: unsupported operand type(s) for +: 'int' and 'str'"},
      {"é{{ 'é' ~ (1/0) }}", "f.jinja:1:12: division by zero"},
      {"\n\n{% if %}", "f.jinja:3:7: expected an expression, got '%}'"},
      {"{% for i in x %}\n",
       "f.jinja:1:17: the template ends where 'endfor' or 'else' is missing, for a tag of line 1"},
      {"{{ x|nosuch }}", "f.jinja:1:6: No filter named 'nosuch'."},
      {"{{ 'a }}", "f.jinja:1:4: unexpected char ': the string has no end"},
      {"{# a", "f.jinja:1:1: Missing end of comment tag"},
      {"{{ raise_exception('no ' ~ 'tools') }}", "f.jinja:1:19: no tools"},
      {"{% macro m() %}{{ 1/0 }}{% endmacro %}\n{{ m() }}", "f.jinja:1:19: division by zero"},
      {"{% include 'x' %}", "f.jinja:1:4: 'include' needs another template, and there is none"},
      {"{{ [].append(1) }}", "f.jinja:1:13: access to attribute 'append' of 'list' object is unsafe."},
      {"{% set ns.a = 1 %}", "f.jinja:1:8: cannot assign attribute on non-namespace object"},
      {"{% set n = namespace() %}{% set n._a = 1 %}",
       "f.jinja:1:29: a namespace takes no name that begins with an underline, such as '_a'; rename it"},
  };
  for (const auto& [source, expected] : cases) {
    const absl::StatusOr<Text> text = RenderTemplate(source);
    EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument) << source;
    EXPECT_EQ(std::string(text.status().message()), expected) << source;
  }
}

TEST(JinjaLimits, WhatIsNoText) {
  EXPECT_EQ(Template::Parse("f", "a\xff").status().message(), "f: the template is not UTF-8");
  EXPECT_FALSE(Template::Parse("f", std::string((4 << 20) + 1, 'x')).ok());
}

TEST(JinjaLimits, ATemplateIsSharedByThreads) {
  const auto parsed = Template::Parse("t",
                                      "{% set n = namespace(s='') %}{% macro m(a) %}<{{ a }}>{% endmacro %}"
                                      "{% for i in range(20) %}{% set n.s = n.s ~ m(x ~ i) %}{% endfor %}{{ n.s }}");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  std::vector<std::thread> threads;
  std::vector<std::string> texts(4);
  for (size_t t = 0; t < texts.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 50; ++round) {
        const Value context = LoadJson("{\"x\": " + std::to_string(t) + "}", true);
        texts[t] = (*parsed)->Render(context.dict(), 0)->bytes();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t t = 0; t < texts.size(); ++t) {
    std::string expected;
    for (int i = 0; i < 20; ++i) expected += "<" + std::to_string(t) + std::to_string(i) + ">";
    EXPECT_EQ(texts[t], expected);
  }
}

}  // namespace
}  // namespace fastdecode::jinja
