#ifndef FASTDECODE_TOOLS_FOREIGN_OPTIONS_H_
#define FASTDECODE_TOOLS_FOREIGN_OPTIONS_H_

#include <string>
#include <string_view>

namespace fastdecode {

// What there is here in place of an option or a command of llama.cpp, vLLM, SGLang, TGI, ollama or transformers: words
// that go behind "unknown option NAME: ". Empty: none of them has it. docs/FROM_OTHER_SERVERS.md tells people the same.

// `name`: with its dashes. Names of several words may have underscores between them, those of one letter their value
// behind them (-t4), and long ones a field behind a point (--compilation-config.level).
std::string_view ForeignOptionAnswer(std::string_view name);
std::string_view ForeignCommandAnswer(std::string_view name);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_FOREIGN_OPTIONS_H_
