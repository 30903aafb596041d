#include "rdma/tcp/transcript.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <numeric>
#include <string>

#include "tests/rdma/tcp/secret_file.h"

namespace fastdecode {
namespace {

std::string Hex(const char* bytes, size_t count) {
  std::string hex;
  for (size_t i = 0; i < count; ++i) {
    char digits[3];
    snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(bytes[i]));
    hex += digits;
  }
  return hex;
}

std::string HexHmac(const std::string& key, const std::string& text) {
  const Mac mac = HmacSha256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), text);
  return Hex(reinterpret_cast<const char*>(mac.data()), mac.size());
}

// RFC 4231, test cases 1, 2, 3, 6 and 7.
TEST(HmacTest, KnownVectors) {
  EXPECT_EQ(HexHmac(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(HexHmac("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(HexHmac(std::string(20, '\xaa'), std::string(50, '\xdd')),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(HexHmac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT_EQ(HexHmac(std::string(131, '\xaa'),
                    "This is a test using a larger than block-size key and a larger than block-size data. The key "
                    "needs to be hashed before being used by the HMAC algorithm."),
            "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

constexpr char kSecret[] = "0123456789abcdef0123456789abcdef";

std::string Frame() {
  std::string frame(56, '\0');
  std::iota(frame.begin(), frame.begin() + 24, '\0');
  return frame;
}

Transcript Begun() {
  Transcript transcript(MakeSecret(kSecret));
  transcript.Append("hello from engine");
  transcript.Append("hello from worker");
  return transcript;
}

// What is signed, as the header says; computed with Python's hmac.
TEST(TranscriptTest, SignsLabelAndEverythingSoFar) {
  Transcript transcript = Begun();
  std::string first = Frame();
  transcript.SignAndAppend(Side::kEngine, &first);
  EXPECT_EQ(first.substr(0, 24), Frame().substr(0, 24));
  EXPECT_EQ(Hex(first.data() + 24, 32), "cd9a71f8bde32279de4d0d5f29f82cd80e453775ea280c9ddb902757aa4d3e01");
  std::string second = Frame();
  transcript.SignAndAppend(Side::kWorker, &second);
  EXPECT_EQ(Hex(second.data() + 24, 32), "664876172e3c7ab619f2f4542d83db67e68bd996fb9e95507b980ff573b5e03f");

  Transcript other = Begun();
  std::string worker = Frame();
  other.SignAndAppend(Side::kWorker, &worker);
  EXPECT_EQ(Hex(worker.data() + 24, 32), "a79e57eb6756a2de70322b9f2c931a4799d5d042463eb5ae8ee1d6b2cd1bc503");
}

TEST(TranscriptTest, VerifiesWhatTheOtherSigned) {
  std::string frame = Frame();
  Begun().SignAndAppend(Side::kEngine, &frame);
  EXPECT_TRUE(Begun().VerifyAndAppend(Side::kEngine, frame));
  EXPECT_FALSE(Begun().VerifyAndAppend(Side::kWorker, frame)) << "a frame was sent back to who sent it";
  for (size_t i = 0; i < frame.size(); ++i) {
    std::string damaged = frame;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    EXPECT_FALSE(Begun().VerifyAndAppend(Side::kEngine, damaged)) << "byte " << i;
  }
  Transcript longer = Begun();
  longer.Append("x");
  EXPECT_FALSE(longer.VerifyAndAppend(Side::kEngine, frame));
  EXPECT_FALSE(Transcript(MakeSecret(kSecret)).VerifyAndAppend(Side::kEngine, frame));
}

TEST(TranscriptTest, AnotherSecretSignsOtherwise) {
  std::string frame = Frame();
  Begun().SignAndAppend(Side::kEngine, &frame);
  Transcript other(MakeSecret("0123456789abcdef0123456789abcdeg"));
  other.Append("hello from engine");
  other.Append("hello from worker");
  EXPECT_FALSE(other.VerifyAndAppend(Side::kEngine, frame));
}

TEST(TranscriptTest, NoncesDiffer) { EXPECT_NE(*RandomNonce(), *RandomNonce()); }

}  // namespace
}  // namespace fastdecode
