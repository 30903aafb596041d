// embed_cpp MODEL [OPTION=VALUE ...]: as embed_c.c, through the C++ header.
#include <fastdecode/fastdecode.hpp>
#include <iostream>
#include <string>

int main(int argc, char** argv) try {
  fd_option_info option;
  option.struct_size = sizeof(option);
  size_t count = 0;
  while (fd_option_at(count, &option) == 1) ++count;
  std::cout << "version " << fd_version() << ", ABI " << fd_abi_version() << " of " << FD_ABI_VERSION << ", " << count
            << " options" << std::endl;
  if (argc < 2) return 2;

  fastdecode::EngineOptions options;
  options.Set("model", argv[1]);
  for (int i = 2; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    if (equals == std::string::npos) return 2;
    options.Set(argument.substr(0, equals), argument.substr(equals + 1));
  }
  fastdecode::InferenceEngine engine(options);
  for (const char* prompt : {"Once upon a time", "The little dog"}) {
    fastdecode::GenerateRequest request{std::string(prompt)};
    engine.SetDefaultSampling(&request);
    request.fields.max_tokens = 20;
    request.fields.temperature = 0;
    fastdecode::TokenStream stream = engine.Submit(request);
    std::cout << prompt;
    while (auto event = stream.Next()) std::cout << event->text;
    std::cout << "\n";
  }
  return 0;
} catch (const fastdecode::Error& error) {
  std::cerr << "embed_cpp: error " << error.code() << ": " << error.what() << "\n";
  return 1;
}
