//! README: the program that it prints compiles and runs as printed.

use sluice_vfs::{Cred, Errno, Fs, OpenFlags};

fn main() -> Result<(), Errno> {
    let fs = Fs::new();
    fs.create_dir_all("/srv/www")?;
    fs.write("/srv/www/index.html", "<h1>hello</h1>")?;

    // The POSIX calls, as a user of your choice.
    let user = fs.process(Cred::user(1000, 1000));
    let fd = user.open("/srv/www/index.html", OpenFlags::RDONLY, 0)?;
    let mut start = [0; 4];
    user.pread(fd, &mut start, 0)?;
    assert_eq!(&start, b"<h1>");
    assert_eq!(user.unlink("/srv/www/index.html"), Err(Errno::EACCES));

    // Shares its pages with the original until one side writes.
    let before = fs.snapshot("/srv")?;
    fs.remove_dir_all("/srv")?;
    assert_eq!(before.read_to_string("/www/index.html")?, "<h1>hello</h1>");

    assert!(fs.check().is_clean()); // the invariants of the whole tree
    Ok(())
}

#[test]
fn the_program_of_the_readme_runs() {
    main().unwrap();
}

#[test]
fn the_readme_prints_the_program_that_runs() {
    let readme = include_str!("../../../../README.md");
    let (_, program) = readme.split_once("```rust\n").expect("the README has a program");
    let (program, _) = program.split_once("```").expect("the program ends");
    assert!(include_str!("readme.rs").contains(program), "tests/suite/readme.rs does not run:\n{program}");
}
