"""What attention costs, as the pages show it."""

import prices

HEADS = (
    "model,batch,size,mechanism,mode,part,precision,hardware,torch,"
    "time ratio,memory ratio,first s,plain first s,error\n"
)
ROWS = {
    "eager": "resnet50,64,224,aw,eager,train,bf16,NVIDIA H200,2.11.0,1.316,1.02,3.1,1.0,\n",
    "compiled": "resnet50,64,224,aw,default,train,bf16,NVIDIA H200,2.11.0,1.1,1.01,40,30,\n",
    "failed": "resnet50,64,320,se,default,train,bf16,NVIDIA H200,2.11.0,,,,,RuntimeError: no\n",
    "late": "resnet50,64,224,spatial,eager,train,bf16,NVIDIA H200,2.11.0,1.5,1.1,2,1,\n",
    "larger": "resnet50,256,224,aw,eager,train,bf16,NVIDIA H200,2.11.0,1.05,1,2,1,\n",
    "refused": "resnet50,64,224,se,eager,train,bf16,NVIDIA H200,2.11.0,,,,,UserError: R has no usual place for 'se'\n",
    "inference": "resnet50,64,224,aw,eager,infer,bf16,NVIDIA H200,2.11.0,1.2,1,0.5,0.6,\n",
    "control": "resnet50,64,224,none,eager,train,bf16,NVIDIA H200,2.11.0,0.96,1,,,\n",
    "control34": "resnet34,64,224,none,eager,train,bf16,NVIDIA H200,2.11.0,1.04,1,,,\n",
    "cpu": 'resnet18,16,224,aw,eager,train,fp32,"CPU, 2 threads",2.15.0,1.3,1.5,1,1,\n',
}


def write(folder, *names):
    (folder / "bench-insert.csv").write_text(HEADS + "".join(ROWS[name] for name in names), encoding="utf-8")
    return folder


def test_nothing_measured(tmp_path):
    assert "benchmarks/insert.py --preset h200" in prices.prices("", tmp_path)


def test_modes_stand_side_by_side(tmp_path):
    text = prices.prices("train", write(tmp_path, "eager", "compiled", "failed", "inference"))
    assert text.splitlines()[2:] == [
        "| | | eager | compiled |",
        "|---|---|---|---|",
        "| resnet50, batch 64 | aw | 1.32× (1.02×; +2.1 s) | 1.10× (1.01×; +10.0 s) |",
        "| resnet50, batch 64, 320×320 | se |  | does not run |",
    ]
    assert text.startswith("A training step")
    assert "NVIDIA H200, torch 2.11.0, bf16." in text


def test_a_table_for_each_hardware_and_part(tmp_path):
    text = prices.prices("", write(tmp_path, "cpu", "inference", "eager"))
    titles = [line for line in text.splitlines() if line and not line.startswith("|")]
    assert [title.split(",")[0] for title in titles] == ["A training step", "Inference", "A training step"]
    assert ["CPU, 2 threads" in title for title in titles] == [False, False, True]


def test_mechanisms_of_a_model_stand_together(tmp_path):
    text = prices.prices("train", write(tmp_path, "eager", "failed", "late"))
    assert [line.split(" | ")[:2] for line in text.splitlines()[4:]] == [
        ["| resnet50, batch 64", "aw"],
        ["| resnet50, batch 64", "spatial"],
        ["| resnet50, batch 64, 320×320", "se"],
    ]


def test_a_short_table_has_eager_steps_and_mechanisms_across(tmp_path):
    text = prices.prices("train short", write(tmp_path, "eager", "compiled", "late", "larger", "refused", "inference"))
    assert text.splitlines()[2:] == [
        "| | aw | spatial | se |",
        "|---|---|---|---|",
        "| resnet50, batch 64 | 1.32× (1.02×) | 1.50× (1.10×) | no default site |",
        "| resnet50, batch 256 | 1.05× (1.00×) |  |  |",
    ]


def test_the_revision_is_said(tmp_path):
    file = write(tmp_path, "eager") / "bench-insert.csv"
    head, row = file.read_text(encoding="utf-8").splitlines()
    file.write_text(f"{head},revision\n{row},abc\n{row},until def\n", encoding="utf-8")
    assert "NVIDIA H200, torch 2.11.0, bf16; revision abc, def or earlier." in prices.prices("train", tmp_path)


def test_a_second_plain_model_is_a_sentence_about_chance(tmp_path):
    folder = write(tmp_path, "eager", "control", "control34")
    *table, sentence = prices.prices("train", folder).splitlines()
    assert sentence.startswith("Chance:")
    assert "in 2 of these measurements (eager), took 0.96 to 1.04" in sentence
    assert not any("none" in line for line in table)
    assert "Chance" not in prices.prices("train short", folder)
    assert prices.prices("train", write(tmp_path, "control")).startswith("Not measured yet")
