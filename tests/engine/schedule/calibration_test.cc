#include "engine/schedule/calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <string>

namespace fastdecode {
namespace {

using testing::HasSubstr;

class CalibrationTest : public testing::Test {
 protected:
  CalibrationTest() {
    calibration_.engine = {22, 2048, 5632, 32, 4, 64, 32000, "bf16", "int8", "avx512bf16", "split", "far"};
    calibration_.costs.layers = 22;
    for (const double rows : {1, 16, 64}) {
      calibration_.costs.stage.Add(rows, 100 + rows);
      calibration_.costs.head.Add(rows, 10 + rows);
    }
    calibration_.costs.boundary_us = 1.5;
    calibration_.costs.s_slowed = 0.125;
    calibration_.costs.homes[0] = {
        .hop_us = 3, .sequence_us = 0.25, .token_us = 0.001, .pair_us = 0.0001, .tokens_max = 8192};
    calibration_.costs.homes[1] = {.token_us = 0.5, .near = true};
    calibration_.homes = 2;
    calibration_.version = "1.2.3";
    calibration_.machine = "a processor";
    calibration_.time_s = 1'800'000'000;
  }
  ~CalibrationTest() override { std::remove(path_.c_str()); }

  absl::StatusOr<Calibration> Read(const std::string& text) {
    std::ofstream(path_) << text;
    return ReadCalibration("--check", path_);
  }
  // What is said of a file that `change` has spoiled.
  std::string Fault(const std::function<void(nlohmann::json&)>& change) {
    nlohmann::json json = ToJson(calibration_);
    change(json);
    return std::string(Read(json.dump()).status().message());
  }

  const std::string path_ = testing::TempDir() + "fd-calibration-" + std::to_string(getpid());
  Calibration calibration_;
};

TEST_F(CalibrationTest, AFileSaysAllThatWasWritten) {
  const absl::StatusOr<Calibration> read = Read(ToJson(calibration_).dump(2));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->engine, calibration_.engine);
  EXPECT_EQ(ToJson(*read), ToJson(calibration_));
  EXPECT_EQ(read->costs.layers, 22);
  EXPECT_EQ(read->costs.stage.At(40), 140);
  EXPECT_TRUE(read->costs.homes[1].near);
  EXPECT_EQ(read->costs.homes[63].token_us, 0.5) << "homes that were not measured are like the last one";
  EXPECT_EQ(read->machine, "a processor");
}

TEST_F(CalibrationTest, AFileThatIsNoneSaysWhatIsWrong) {
  EXPECT_THAT(std::string(ReadCalibration("--check", "/nowhere/f").status().message()),
              HasSubstr("--check: /nowhere/f: cannot be read"));
  for (const char* text : {"", "{", "[]", "{}", "\xff"}) {
    EXPECT_THAT(std::string(Read(text).status().message()), HasSubstr(path_ + ": no calibration")) << text;
  }
  EXPECT_THAT(Fault([](auto& json) { json["calibration"] = 1; }), HasSubstr("format 1, this program reads 2"));
  EXPECT_THAT(Fault([](auto& json) { json["time"] = "today"; }), HasSubstr("time: \"today\" is not a whole number"));
  EXPECT_THAT(Fault([](auto& json) { json.erase("costs"); }), HasSubstr("no field 'stage'"));
  EXPECT_THAT(Fault([](auto& json) { json["engine"].erase("heads"); }), HasSubstr("no field 'heads'"));
  EXPECT_THAT(Fault([](auto& json) { json["engine"]["heads"] = "many"; }),
              HasSubstr("heads: \"many\" is not a whole number"));
  EXPECT_THAT(Fault([](auto& json) { json["engine"]["isa"] = 5; }), HasSubstr("isa: 5 is not a text"));
  EXPECT_THAT(Fault([](auto& json) { json["costs"]["hop_us"] = -1; }),
              HasSubstr("hop_us: -1 is not a number that is not negative"));
  EXPECT_THAT(Fault([](auto& json) { json["costs"]["stage"] = nlohmann::json::array(); }),
              HasSubstr("stage: [] is not"));
  EXPECT_THAT(Fault([](auto& json) { json["costs"]["stage"][1] = {16}; }), HasSubstr("stage: [16] is not"));
  EXPECT_THAT(Fault([](auto& json) { json["costs"]["stage"][1][0] = 1; }), HasSubstr("with growing rows"));
  EXPECT_THAT(Fault([](auto& json) { json["costs"]["homes"] = nlohmann::json::array(); }),
              HasSubstr("homes: [] is not a list"));
  EXPECT_THAT(Fault([](auto& json) { json["costs"]["homes"][1].erase("token_us"); }), HasSubstr("no field 'token_us'"));
  EXPECT_THAT(Fault([](auto& json) { json["costs"]["homes"][0]["near"] = 1; }),
              HasSubstr("near: 1 is not true or false"));
}

TEST_F(CalibrationTest, AnotherEnginesFileIsRefusedByTheFirstThatDiffers) {
  const auto differs = [&](const CalibratedEngine& engine) {
    return std::string(CheckCalibration("--check", "f", calibration_, engine).message());
  };
  EXPECT_EQ(differs(calibration_.engine), "");
  CalibratedEngine engine = calibration_.engine;
  engine.kv_type = "bf16";
  EXPECT_THAT(differs(engine), HasSubstr("--check: f: kv_type: measured with int8, this engine has bf16"));
  engine.hidden = 4096;
  EXPECT_THAT(differs(engine), HasSubstr("hidden: measured with 2048, this engine has 4096"));
  engine = calibration_.engine;
  engine.core_plan = "shared";
  EXPECT_THAT(differs(engine), HasSubstr("core_plan: measured with split, this engine has shared"));
  engine = calibration_.engine;
  engine.home_kinds = "near and far";
  EXPECT_THAT(differs(engine), HasSubstr("home_kinds: measured with far, this engine has near and far"));
}

}  // namespace
}  // namespace fastdecode
