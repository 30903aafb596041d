#ifndef FASTDECODE_ENGINE_TEXT_JINJA_FAILURE_H_
#define FASTDECODE_ENGINE_TEXT_JINJA_FAILURE_H_

#include <cstdint>
#include <string>

namespace fastdecode::jinja {

// Where something stands in a template: line and column count from 1, columns in characters. Line 0: nowhere.
struct Position {
  uint32_t line = 0;
  uint32_t column = 0;
};

// What is thrown inside of this folder; Template turns it into a Status.
struct Failure {
  enum class Kind {
    kSyntax,   // the template is none
    kRuntime,  // an operation that Python or Jinja refuses, or what the template calls raise_exception with
    kLimit,    // more steps, memory, depth or time than a template may use
  };
  std::string message;
  Kind kind = Kind::kRuntime;
  Position at = {};  // whoever evaluates the innermost expression fills it in
};

}  // namespace fastdecode::jinja

#endif  // FASTDECODE_ENGINE_TEXT_JINJA_FAILURE_H_
