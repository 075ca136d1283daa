//! The binary `tickhost`.

fn main() -> std::process::ExitCode {
    tickhost::cli::main()
}
