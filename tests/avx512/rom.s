# Instead of a BIOS: from reset to 64 bits with AVX-512, then the image from the disk to 1 MiB, and into it.
# Sector 0 of the disk says how many sectors follow.
	.code16
	.section .text
	.globl _start
_start:
	cli
	cs lgdtl table - 0xF0000
	mov %cr0, %eax
	or $1, %eax
	mov %eax, %cr0
	ljmpl $0x08, $protected

	.code32
protected:
	mov $0x10, %ax
	mov %ax, %ds
	mov %ax, %es
	mov %ax, %ss
	mov $0x10000, %edi              # page tables: 4 GiB as they are, in pages of 2 MiB
	xor %eax, %eax
	mov $0x1800, %ecx
	rep stosl
	movl $0x11003, 0x10000
	movl $0x12003, 0x11000
	movl $0x13003, 0x11008
	movl $0x14003, 0x11010
	movl $0x15003, 0x11018
	mov $0x12000, %edi
	mov $0x83, %eax
	mov $2048, %ecx
page:	mov %eax, (%edi)
	add $0x200000, %eax
	add $8, %edi
	loop page
	mov %cr4, %eax
	or $0x40620, %eax               # PAE, OSFXSR, OSXMMEXCPT, OSXSAVE
	mov %eax, %cr4
	mov $0x10000, %eax
	mov %eax, %cr3
	mov $0xC0000080, %ecx
	rdmsr
	or $0x100, %eax                 # long mode
	wrmsr
	mov %cr0, %eax
	and $0xFFFFFFFB, %eax
	or $0x80000022, %eax            # paging, floats
	mov %eax, %cr0
	ljmpl $0x18, $long

	.code64
long:	xor %ecx, %ecx
	xor %edx, %edx
	mov $0xE7, %eax                 # all registers of AVX-512
	xsetbv
	mov $0xF000, %rsp
	mov $0x9000, %edi
	xor %r9d, %r9d
	call sector
	mov 0x9000, %r10d
	mov $0x100000, %edi
	mov $1, %r9d
more:	call sector
	inc %r9d
	dec %r10d
	jnz more
	mov $0x100000, %rax
	call *%rax
	mov $0x8900, %dx                # Bochs ends when it reads this word here
	lea word(%rip), %rsi
	mov $8, %ecx
	rep outsb
stay:	hlt
	jmp stay

sector:	mov $0x1F6, %dx                 # sector r9d of the first disk to rdi
	mov %r9d, %eax
	shr $24, %eax
	or $0xE0, %al
	out %al, %dx
	mov $0x1F2, %dx
	mov $1, %al
	out %al, %dx
	inc %dx
	mov %r9d, %eax
	out %al, %dx
	inc %dx
	shr $8, %eax
	out %al, %dx
	inc %dx
	shr $8, %eax
	out %al, %dx
	mov $0x1F7, %dx
	mov $0x20, %al
	out %al, %dx
wait:	in %dx, %al
	test $0x80, %al
	jnz wait
	test $0x08, %al
	jz wait
	mov $0x1F0, %dx
	mov $256, %ecx
	rep insw
	ret

word:	.ascii "Shutdown"
	.balign 16
segments:
	.quad 0
	.quad 0x00CF9A000000FFFF
	.quad 0x00CF92000000FFFF
	.quad 0x00AF9A000000FFFF
table:	.word 31
	.long segments

	.section .reset, "ax"
	.code16
	ljmp $0xF000, $(_start - 0xF0000)
	.balign 16
