"""Chat templates in the manner of known families, each with what makes it hard."""

from __future__ import annotations

from tests.unit.chat_templates import Template

_CHATML = ("<|im_end|>", "<|im_start|>")
_OPEN = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"

QWEN25 = (
    "{%- if messages[0]['role'] == 'system' %}"
    "{{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}"
    "{%- else %}{{- '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{%- endif %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'tool' %}"
    "{%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}"
    "{{- '<|im_start|>user' }}{%- endif %}"
    "{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}"
    "{{- '<|im_end|>\n' }}{%- endif %}"
    "{%- elif not (m.role == 'system' and loop.first) %}"
    "{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}"
    "{%- endif %}{%- endfor %}" + _OPEN
)
QWEN3 = (
    "{%- set ns = namespace(last=messages|length - 1, seeks=true) %}"
    "{%- for m in messages[::-1] %}"
    "{%- if ns.seeks and m.role == 'user' %}{%- set ns.seeks = false %}"
    "{%- set ns.last = messages|length - 1 - loop.index0 %}{%- endif %}{%- endfor %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'assistant' %}"
    "{%- set thought = '' %}{%- set said = m.content %}"
    "{%- if '</think>' in said %}"
    "{%- set thought = said.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
    "{%- set said = said.split('</think>')[-1].lstrip('\n') %}{%- endif %}"
    "{%- if loop.index0 > ns.last and (loop.last or thought) %}"
    "{{- '<|im_start|>assistant\n<think>\n' + thought.strip('\n') + '\n</think>\n\n' }}"
    "{{- said.lstrip('\n') + '<|im_end|>\n' }}"
    "{%- else %}{{- '<|im_start|>assistant\n' + said + '<|im_end|>\n' }}{%- endif %}"
    "{%- else %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endif %}"
    "{%- endfor %}" + _OPEN
)
LLAMA3_DATE = (
    "{{- '<|begin_of_text|>' }}"
    "{%- if not date_string is defined %}{%- set date_string = '26 Jul 2024' %}{%- endif %}"
    "{%- if messages[0]['role'] == 'system' %}{%- set about = messages[0]['content']|trim %}"
    "{%- set messages = messages[1:] %}{%- else %}{%- set about = '' %}{%- endif %}"
    "{{- '<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n' }}"
    "{{- 'Today Date: ' + date_string + '\n\n' + about + '<|eot_id|>' }}"
    "{%- for m in messages %}"
    "{%- set role = 'ipython' if m.role in ('tool', 'ipython') else m.role %}"
    "{{- '<|start_header_id|>' + role + '<|end_header_id|>\n\n' + m.content|trim + '<|eot_id|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)
MISTRAL_SYSTEM = (
    "{%- if messages[0]['role'] == 'system' %}{%- set about = messages[0]['content'] %}"
    "{%- set turns = messages[1:] %}{%- else %}{%- set about = '' %}{%- set turns = messages %}"
    "{%- endif %}{{- '<s>' }}"
    "{%- for m in turns %}"
    "{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{- raise_exception('After the optional system message, roles must alternate') }}{%- endif %}"
    "{%- if m.role == 'user' %}"
    "{%- if loop.last and about %}{{- '[INST] ' + about + '\n\n' + m.content + '[/INST]' }}"
    "{%- else %}{{- '[INST] ' + m.content + '[/INST]' }}{%- endif %}"
    "{%- elif m.role == 'assistant' %}{{- ' ' + m.content|trim + '</s>' }}"
    "{%- else %}{{- raise_exception('Only user and assistant roles are supported') }}"
    "{%- endif %}{%- endfor %}"
)
GEMMA = (
    "{{ '<bos>' }}"
    "{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + m['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
DEEPSEEK = (
    "{%- set ns = namespace(about='') %}"
    "{%- for m in messages %}{%- if m.role == 'system' %}"
    "{%- set ns.about = ns.about + m.content %}{%- endif %}{%- endfor %}"
    "{{- '<begin>' + ns.about }}"
    "{%- for m in messages %}"
    "{%- if m.role == 'user' %}{{- '<User>' + m.content }}{%- endif %}"
    "{%- if m.role == 'tool' %}{{- '<tool>' + m.content }}{%- endif %}"
    "{%- if m.role == 'assistant' %}"
    "{{- '<Assistant>' + m.content.split('</think>')[-1] + '<end>' }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<Assistant><think>\n' }}{%- endif %}"
)
HERMES = (
    "{{- '<s><|im_start|>system\nYou may call functions within <tools></tools>: <tools>' }}"
    "{%- for tool in tools or [] %}{{- tool | tojson }}{%- endfor %}"
    "{{- '</tools><|im_end|>\n' }}"
    "{%- for m in messages %}"
    "{%- if m.role == 'tool' %}"
    "{%- if not loop.previtem or loop.previtem.role != 'tool' %}{{- '<|im_start|>tool\n' }}"
    "{%- endif %}{{- '<tool_response>\n' + m.content }}"
    "{{- '\n</tool_response>' if loop.last or loop.nextitem.role == 'tool' "
    "else '\n</tool_response>' }}"
    "{%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}"
    "{%- elif m.role == 'assistant' and m.tool_calls %}"
    "{{- '<|im_start|>assistant\n' }}"
    "{%- for call in m.tool_calls %}"
    "{{- '<tool_call>\n' + (call.function | tojson) + '\n</tool_call>' }}{%- endfor %}"
    "{{- '<|im_end|>\n' }}"
    "{%- else %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endif %}"
    "{%- endfor %}" + _OPEN
)
TRIMS = (
    "{%- if messages[0].role != 'system' %}{{- '<sys>Be brief.</sys>' }}{%- endif %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'system' %}{{- '<sys>' + m.content|trim + '</sys>' }}"
    "{%- elif m.role == 'assistant' %}{{- '<a>' + m.content|trim + '</a>' }}"
    "{%- else %}{{- '<u>' + m.content|trim|replace('\n\n', '\n') + '</u>' }}{%- endif %}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<a>' }}{%- endif %}"
)

FAMILIES = {
    "qwen2.5": Template(QWEN25, _CHATML),
    "qwen3": Template(QWEN3, _CHATML),
    "llama3-date": Template(
        LLAMA3_DATE,
        ("<|eot_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
    ),
    "mistral-system": Template(MISTRAL_SYSTEM, ("</s>", "<s>", "[INST]", "[/INST]"), ("user",)),
    "gemma": Template(GEMMA, ("<end_of_turn>", "<bos>", "<start_of_turn>"), ("user",)),
    "deepseek": Template(DEEPSEEK, ("<end>", "<begin>", "<User>", "<Assistant>", "<tool>")),
    "hermes": Template(HERMES, (*_CHATML, "<s>")),
    "trims": Template(TRIMS, ("</a>", "<a>", "<u>", "</u>", "<sys>", "</sys>")),
}
