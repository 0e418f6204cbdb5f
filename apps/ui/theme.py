"""Type, colour and spacing that Gradio's own components take; what they do not take is in page.css.

Fonts are those of the reader's system, so that no other host is asked for any.
"""

from __future__ import annotations

from gradio.themes.base import Base
from gradio.themes.utils import colors, sizes

TEXT = ("Inter", "ui-sans-serif", "system-ui", "Segoe UI", "Roboto", "Helvetica Neue", "sans-serif")
CODE = ("ui-monospace", "SF Mono", "JetBrains Mono", "Cascadia Mono", "Menlo", "Consolas", "monospace")

PAPER = colors.Color(
    name="paper", c50="#faf9f6", c100="#f3f1eb", c200="#e6e3da", c300="#d3cfc4", c400="#a5a29a", c500="#767571",
    c600="#5b5b5c", c700="#3a3c44", c800="#262932", c900="#1b1d24", c950="#121318",
)  # fmt: skip
INK = colors.Color(
    name="ink", c50="#eef4fd", c100="#d9e7fb", c200="#b3cff6", c300="#84b0ef", c400="#5590e5", c500="#2d6ec8",
    c600="#245bab", c700="#1d4988", c800="#173a6b", c900="#122d52", c950="#0c1f3a",
)  # fmt: skip


def theme() -> Base:
    """Warm paper by day, slate by night; one dark button, everything else quiet."""
    made = Base(
        primary_hue=INK, secondary_hue=INK, neutral_hue=PAPER, font=TEXT, font_mono=CODE, text_size=sizes.text_md,
        spacing_size=sizes.spacing_md, radius_size=sizes.radius_md,
    )  # fmt: skip
    made.name = "polydraft"
    return made.set(
        body_background_fill="*neutral_50", body_background_fill_dark="*neutral_950",
        body_text_color="#1d1f27", body_text_color_dark="#eceae4",
        body_text_color_subdued="#63656d", body_text_color_subdued_dark="#a0a3ad",
        background_fill_primary="#ffffff", background_fill_primary_dark="*neutral_900",
        background_fill_secondary="*neutral_100", background_fill_secondary_dark="*neutral_800",
        border_color_primary="*neutral_200", border_color_primary_dark="#2f323c",
        border_color_accent="*primary_500", border_color_accent_dark="*primary_400",
        block_background_fill="transparent", block_background_fill_dark="transparent",
        block_border_width="0px", block_border_width_dark="0px", block_shadow="none", block_shadow_dark="none",
        block_padding="0", block_radius="10px", block_label_background_fill="transparent",
        block_title_text_weight="600", block_title_text_size="14px",
        block_title_text_color="*body_text_color", block_title_text_color_dark="*body_text_color",
        block_info_text_size="13px", block_info_text_color="*body_text_color_subdued",
        block_info_text_color_dark="*body_text_color_subdued",
        panel_background_fill="transparent", panel_background_fill_dark="transparent", panel_border_width="0px",
        form_gap_width="0px", layout_gap="16px",
        input_background_fill="#ffffff", input_background_fill_dark="#16181e",
        input_border_color="*neutral_300", input_border_color_dark="#3a3d48", input_border_width="1px",
        input_border_color_focus="*primary_500", input_border_color_focus_dark="*primary_400",
        input_shadow="none", input_shadow_dark="none",
        input_shadow_focus="0 0 0 3px color-mix(in srgb, *primary_500 22%, transparent)",
        input_shadow_focus_dark="0 0 0 3px color-mix(in srgb, *primary_400 30%, transparent)",
        input_radius="9px", input_padding="10px 12px", input_text_size="16px",
        button_border_width="1px", button_border_width_dark="1px", button_transition="background-color .15s",
        button_large_radius="9px", button_medium_radius="9px", button_small_radius="999px",
        button_large_padding="12px 22px", button_large_text_size="16px", button_large_text_weight="600",
        button_small_padding="6px 12px", button_small_text_size="13px", button_small_text_weight="500",
        button_primary_background_fill="#1d1f27", button_primary_background_fill_dark="#f1eee7",
        button_primary_background_fill_hover="#34374a", button_primary_background_fill_hover_dark="#ffffff",
        button_primary_text_color="#ffffff", button_primary_text_color_dark="#15161b",
        button_primary_border_color="transparent", button_primary_border_color_dark="transparent",
        button_primary_border_color_hover="transparent", button_primary_border_color_hover_dark="transparent",
        button_secondary_background_fill="#ffffff", button_secondary_background_fill_dark="#20232b",
        button_secondary_background_fill_hover="*neutral_100", button_secondary_background_fill_hover_dark="#2b2f39",
        button_secondary_border_color="*neutral_300", button_secondary_border_color_dark="#3a3d48",
        button_secondary_text_color="*body_text_color", button_secondary_text_color_dark="*body_text_color",
        checkbox_label_background_fill="transparent", checkbox_label_background_fill_dark="transparent",
        checkbox_label_background_fill_hover="transparent", checkbox_label_background_fill_hover_dark="transparent",
        checkbox_label_border_width="0px", checkbox_label_padding="0", checkbox_label_shadow="none",
        checkbox_label_text_size="14px", checkbox_border_color="#8a8780", checkbox_border_color_dark="#757986",
        checkbox_background_color="#ffffff", checkbox_background_color_dark="#16181e",
        checkbox_background_color_selected="*primary_500", checkbox_background_color_selected_dark="*primary_500",
        slider_color="*primary_500", slider_color_dark="*primary_400",
        accordion_text_color="*body_text_color", accordion_text_color_dark="*body_text_color",
    )  # fmt: skip
